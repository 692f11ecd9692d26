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
local FIELDS = {'state', 'key_id', 'prompt', 'granted', 'used', 'produced', 'expires', 'holds',
  'charged', 'charged_cost', 'model', 'price', 'started'}
local NUMBERS = {'prompt', 'granted', 'used', 'produced', 'expires', 'charged', 'charged_cost',
  'started'}
local MAX_REAPED = 64
-- `used` of a lease before its first renewal: its holder may produce all that was granted. The first
-- is that of a lease whose prompt is an estimate: what it has in truth is not known.
local NEVER_TOKENIZED = -2
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
  -- The entry of one that lapsed has an expiry.
  lease.fades = lease.state == 'lapsed'
  return lease
end

local function write_lease(lease)
  local key = request_key(lease.request_id)
  local numbers = {}
  for _, field in ipairs(NUMBERS) do
    numbers[#numbers + 1] = field
    numbers[#numbers + 1] = whole(lease[field])
  end
  redis.call('HSET', key, 'state', lease.state, 'key_id', lease.key_id, 'holds', lease.holds,
    'model', lease.model, 'price', lease.price, unpack(numbers))
  if lease.state == 'held' then
    if lease.fades then redis.call('PERSIST', key) end
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

-- `holds` of a lease names the accounts that it uses with their windows, "k|d20270115|,om||m202701":
-- limits that come or go while it lives change nothing about it.
local function holds_of(lease)
  if lease.parsed then return lease.parsed end
  local holds = {}
  lease.parsed = holds
  for id, tokens, cost in string.gmatch(lease.holds, '(%l+)|(%w*)|(%w*)') do
    holds[#holds + 1] = {account = account_of(id, lease.key_id, lease.model), budget = tokens,
      cost = cost}
  end
  return holds
end

-- Returns new holds on all accounts that a request uses now, and with them their text for its lease.
local function new_holds(key_id, model)
  local holds, texts = {}, {}
  for i, account in ipairs(accounts_of(key_id, model)) do
    holds[i] = new_hold(account)
    texts[i] = account.id .. '|' .. holds[i].budget .. '|' .. holds[i].cost
  end
  return holds, table.concat(texts, ',')
end

-- Amounts are by kind of budget: tokens and cost.
local function amount_of(price, prompt, cached, output)
  return {budget = prompt + output, cost = cost_of(price, prompt, cached, output)}
end

local function difference(more, less)
  return {budget = more.budget - less.budget, cost = more.cost - less.cost}
end

local function estimate(lease) return amount_of(lease.price, lease.prompt, 0, lease.granted) end
local function charged(lease) return {budget = lease.charged, cost = lease.charged_cost} end
local function set_charged(lease, amount)
  lease.charged, lease.charged_cost = amount.budget, amount.cost
end
local NOTHING = {budget = 0, cost = 0}

local function budget_has_room(hold, kind, more)
  local limit = hold.account[kind]
  if hold[kind] == '' or limit == 0 then return true end
  local spent, held = budget_of(hold, kind)
  hold.account[LEFT[kind]] = limit - spent - held
  return spent + held + more <= limit
end

-- The budgets without room for `more`, each with its account and kind.
local function without_room(holds, more)
  local found = {}
  for _, kind in ipairs(KINDS) do
    for _, hold in ipairs(holds) do
      if not budget_has_room(hold, kind, more[kind]) then
        found[#found + 1] = {account = hold.account, kind = kind}
      end
    end
  end
  return found
end

local function has_slots(holds)
  for _, hold in ipairs(holds) do
    local limit = hold.account.concurrency
    if limit > 0 and hold.account.slots >= limit then return false end
  end
  return true
end

local function is_restoring(holds)
  for _, hold in ipairs(holds) do
    if hold.account.restoring == 1 then return true end
  end
  return false
end

-- Holds the lease's estimate in place of what it was charged before (nothing for a new lease).
local function hold(lease)
  local before, now = charged(lease), estimate(lease)
  for _, each in ipairs(holds_of(lease)) do
    take_tokens(each.account, now.budget - before.budget)
    each.account.slots = each.account.slots + 1
    charge(each, difference(NOTHING, before), now)
  end
  lease.state = 'held'
  set_charged(lease, NOTHING)
end

-- Holds so much more for a lease that is held; negative amounts are given back.
local function change_hold(lease, more)
  for _, each in ipairs(holds_of(lease)) do
    take_tokens(each.account, more.budget)
    charge(each, NOTHING, more)
  end
end

-- Gives the hold back and charges `actual` instead. The lease was held.
local function release(lease, actual)
  local held = estimate(lease)
  for _, each in ipairs(holds_of(lease)) do
    take_tokens(each.account, actual.budget - held.budget)
    each.account.slots = math.max(0, each.account.slots - 1)
    charge(each, actual, difference(NOTHING, held))
  end
  set_charged(lease, actual)
end

-- Charges an expired lease what its holder was allowed to produce. The usage record has what the
-- holder reported, of the prompt and as produced, in the tenant's favour, until a settle reports more.
local function lapse(lease)
  local credit = lease.used < 0 and lease.granted or lease.used
  release(lease, amount_of(lease.price, lease.prompt, 0, credit))
  lease.state, lease.fades = 'lapsed', true
  write_lease(lease)
  local prompt = lease.used == NEVER_TOKENIZED and 0 or lease.prompt
  local cost = cost_of(lease.price, prompt, 0, lease.produced)
  redis.call('XADD', ROOT .. ':usage', '*', 'lapsed', lease.request_id, 'key_id', lease.key_id,
    'model', lease.model, 'started', whole(lease.started), 'prompt', whole(prompt),
    'produced', whole(lease.produced), 'cost', whole(cost), 'price', lease.price)
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
