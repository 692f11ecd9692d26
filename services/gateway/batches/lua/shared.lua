-- The part that the scripts of files and batches begin with. A tenant's are below its root:
--   ROOT:files        what a client sees of each file, as JSON by id
--   ROOT:ID:content   the bytes of a file
--   ROOT:ID           a batch, a hash
--   ROOT:ID:done      a bit for each line of a batch that has its result
--   ROOT:batches      ids of batches by the time of their creation
--   ROOT:index        ids of files and batches by the time of their creation
--   ROOT:sizes        bytes by id;  ROOT:bytes  their sum
-- ARGV: id, now and time to live in seconds, bytes and objects of the tenant.
local ROOT, ID = KEYS[1], ARGV[1]
local NOW, TTL_S = tonumber(ARGV[2]), tonumber(ARGV[3])
local MAX_BYTES, MAX_OBJECTS = tonumber(ARGV[4]), tonumber(ARGV[5])
local RECORD = ROOT .. ':' .. ID
local FILES, BATCHES, INDEX = ROOT .. ':files', ROOT .. ':batches', ROOT .. ':index'
local SIZES, BYTES = ROOT .. ':sizes', ROOT .. ':bytes'
-- What Redis needs for an object besides its text, roughly.
local OBJECT_BYTES = 512

local function drop(id)
  local object = ROOT .. ':' .. id
  redis.call('DECRBY', BYTES, redis.call('HGET', SIZES, id) or 0)
  redis.call('HDEL', SIZES, id)
  redis.call('HDEL', FILES, id)
  redis.call('ZREM', INDEX, id)
  redis.call('ZREM', BATCHES, id)
  redis.call('DEL', object, object .. ':content', object .. ':done')
end

local function charge(id, more)
  redis.call('HINCRBY', SIZES, id, more)
  redis.call('INCRBY', BYTES, more)
  if not redis.call('ZSCORE', INDEX, id) then redis.call('ZADD', INDEX, NOW, id) end
  local object = ROOT .. ':' .. id
  for _, key in ipairs({object, object .. ':content', object .. ':done',
                        FILES, BATCHES, INDEX, SIZES, BYTES}) do
    redis.call('EXPIRE', key, TTL_S)
  end
end

-- Forget what is too old. Reply: the reason for which the tenant may have no more; else empty.
local function refusal(more)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', NOW - TTL_S)) do drop(id) end
  if redis.call('ZCARD', INDEX) >= MAX_OBJECTS then return 'too_many' end
  if tonumber(redis.call('GET', BYTES) or 0) + more > MAX_BYTES then return 'full' end
  return ''
end
