-- The part that all scripts begin with. A tenant's objects are below its root:
--   ROOT:ID           a response or a conversation, a hash
--   ROOT:ID:events    the events of a response that runs in the background, a stream
--   ROOT:ID:items     the items of a conversation, a list
--   ROOT:ID:alive     exists while the gateway that computes the response is alive
--   ROOT:index        ids by the time of their last change
--   ROOT:sizes        bytes by id;  ROOT:bytes  their sum
-- ARGV: id, now and time to live in seconds, bytes and objects of the tenant, bytes of one object.
local ROOT, ID = KEYS[1], ARGV[1]
local NOW, TTL_S = tonumber(ARGV[2]), tonumber(ARGV[3])
local MAX_BYTES, MAX_OBJECTS, MAX_OBJECT_BYTES = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local OBJECT = ROOT .. ':' .. ID
local INDEX, SIZES, BYTES = ROOT .. ':index', ROOT .. ':sizes', ROOT .. ':bytes'
-- What Redis needs for an object besides its text, roughly.
local OBJECT_BYTES = 512

local function drop(id)
  local object = ROOT .. ':' .. id
  redis.call('DECRBY', BYTES, redis.call('HGET', SIZES, id) or 0)
  redis.call('HDEL', SIZES, id)
  redis.call('ZREM', INDEX, id)
  redis.call('DEL', object, object .. ':events', object .. ':items', object .. ':alive')
end

local function size_with(more)
  return tonumber(redis.call('HGET', SIZES, ID) or 0) + more
end

-- True when the object has all fields and values that are in ARGV from this place on.
local function has_all(first)
  for i = first, #ARGV, 2 do
    if redis.call('HGET', OBJECT, ARGV[i]) ~= ARGV[i + 1] then return false end
  end
  return true
end

local function oldest_other()
  local found = redis.call('ZRANGE', INDEX, 0, 1, 'WITHSCORES')
  if found[1] == ID then return found[3], tonumber(found[4]) end
  return found[1], tonumber(found[2])
end

-- Count the bytes that were added, and make room for them: the oldest objects go.
local function charge(more)
  redis.call('HINCRBY', SIZES, ID, more)
  redis.call('INCRBY', BYTES, more)
  redis.call('ZADD', INDEX, NOW, ID)
  while true do
    local id, changed_s = oldest_other()
    if not id then break end
    local is_over = tonumber(redis.call('GET', BYTES)) > MAX_BYTES
      or redis.call('ZCARD', INDEX) > MAX_OBJECTS
    if not is_over and changed_s > NOW - TTL_S then break end
    drop(id)
  end
  for _, key in ipairs({OBJECT, OBJECT .. ':events', OBJECT .. ':items', INDEX, SIZES, BYTES}) do
    redis.call('EXPIRE', key, TTL_S)
  end
end
