-- The second part of every script, which all share: the life of one request's lease.
--
--   (none) -> held -> settled
--               \-> lapsed -> settled      lapsed: reaped, charged provisionally, corrected later
--                      \-> held            its holder came back and there is room
--   (lost by the store) -> held            its holder names its amounts, and the budget has room
--
-- ROOT:request:<id> is the lease, ROOT:leases orders the held ones by expiry, ROOT:usage is the
-- stream of usage records that the archiver empties. Of a settled request only its digest, which the
-- caller sends with its id, stays in the set ROOT:settled:<slot>: a slot is a quarter of the time for
-- which requests are remembered.

local LEASES = ROOT .. ':leases'
local FIELDS = {'state', 'key_id', 'prompt', 'granted', 'used', 'produced', 'expires', 'window',
  'charged', 'model', 'started'}
local NUMBERS = {'prompt', 'granted', 'used', 'produced', 'expires', 'charged', 'started'}
local MAX_REAPED = 64
-- `used` of a lease before its first renewal: its holder may produce all that was granted.
local NEVER_RENEWED = -1

local SLOTS_KEPT = 4
local SLOT_MS = math.max(1, math.floor(KEPT_MS / SLOTS_KEPT))
local SLOT = math.floor(NOW / SLOT_MS)

local function request_key(request_id) return ROOT .. ':request:' .. request_id end
local function settled_key(slot) return ROOT .. ':settled:' .. whole(slot) end

-- The next slot counts, too: the clock may have stepped back.
local function is_settled(digest)
  for slot = SLOT - SLOTS_KEPT, SLOT + 1 do
    if redis.call('SISMEMBER', settled_key(slot), digest) == 1 then return true end
  end
  return false
end

local function read_lease(request_id, digest)
  local stored = redis.call('HMGET', request_key(request_id), unpack(FIELDS))
  if not stored[1] then
    return digest and is_settled(digest) and {request_id = request_id, state = 'settled'} or nil
  end
  local lease = {request_id = request_id}
  for i, field in ipairs(FIELDS) do lease[field] = stored[i] or '' end
  for _, field in ipairs(NUMBERS) do lease[field] = tonumber(lease[field]) or 0 end
  return lease
end

local function write_lease(lease)
  local key = request_key(lease.request_id)
  local numbers = {}
  for _, field in ipairs(NUMBERS) do
    numbers[#numbers + 1] = field
    numbers[#numbers + 1] = whole(lease[field])
  end
  redis.call('HSET', key, 'state', lease.state, 'key_id', lease.key_id, 'window', lease.window,
    'model', lease.model, unpack(numbers))
  if lease.state == 'held' then
    redis.call('PERSIST', key)
    redis.call('ZADD', LEASES, whole(lease.expires), lease.request_id)
  else
    redis.call('PEXPIRE', key, whole(KEPT_MS))
    redis.call('ZREM', LEASES, lease.request_id)
  end
end

-- Keeps only the digest of a request, which is final.
local function remember_settled(request_id, digest)
  local key = settled_key(SLOT)
  redis.call('SADD', key, digest)
  redis.call('PEXPIRE', key, whole(KEPT_MS + 2 * SLOT_MS))
  redis.call('DEL', request_key(request_id))
  redis.call('ZREM', LEASES, request_id)
end

local function estimate(lease) return lease.prompt + lease.granted end

-- Returns whether the budget of the lease's window has room for `amount` more tokens.
local function budget_has_room(account, window, amount)
  if window == '' or account.budget == 0 then return true end
  local spent, held = budget_of(account.key_id, window)
  return spent + held + amount <= account.budget
end

-- Holds the lease's estimate in place of what it was charged before (0 for a new lease).
local function hold(lease)
  local account = account_of(lease.key_id)
  take_tokens(account, estimate(lease) - lease.charged)
  account.slots = account.slots + 1
  charge_budget(lease.key_id, lease.window, -lease.charged, estimate(lease))
  lease.state, lease.charged = 'held', 0
end

-- Gives the hold back and charges `actual` tokens instead. The lease was held.
local function release(lease, actual)
  local account = account_of(lease.key_id)
  take_tokens(account, actual - estimate(lease))
  account.slots = math.max(0, account.slots - 1)
  charge_budget(lease.key_id, lease.window, actual, -estimate(lease))
  lease.charged = actual
end

-- Charges an expired lease what its holder was allowed to produce. The usage record has what the
-- holder reported as produced, in the tenant's favour, until a settle reports more.
local function lapse(lease)
  local credit = lease.used == NEVER_RENEWED and lease.granted or lease.used
  release(lease, lease.prompt + credit)
  lease.state = 'lapsed'
  write_lease(lease)
  redis.call('XADD', ROOT .. ':usage', '*', 'lapsed', lease.request_id, 'key_id', lease.key_id,
    'model', lease.model, 'started', whole(lease.started), 'prompt', whole(lease.prompt),
    'produced', whole(lease.produced))
end

-- Lapses up to MAX_REAPED expired leases of the tenant; returns their number.
local function reap()
  local expired = redis.call('ZRANGEBYSCORE', LEASES, '-inf', whole(NOW), 'LIMIT', 0, MAX_REAPED)
  for _, request_id in ipairs(expired) do
    local lease = read_lease(request_id)
    if lease and lease.state == 'held' then lapse(lease) else redis.call('ZREM', LEASES, request_id) end
  end
  return #expired
end
