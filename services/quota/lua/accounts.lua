-- The first part of every script, which all share: time, rate buckets, concurrency, budget windows.
--
-- KEYS[1] is the tenant's root, "baton:{tenant}" or "baton:{organisation}/tenant"; every other key is
-- that root or the organisation's, "baton:{organisation}/", plus a suffix, hence in the same hash
-- slot. ARGV[1] is the time in ms, 0 = the server's own TIME (only tests send
-- another). ARGV[2] is the length of a lease and ARGV[3] the time for which finished requests are
-- remembered, both in ms. All data is in ARGV.
--
-- A bucket's level is an integer in units of 1/60000 request or token: a bucket then gains `limit`
-- units per millisecond, and nothing is ever rounded.

local ROOT = KEYS[1]
-- Nothing if the tenant belongs to no organisation.
local ORGANISATION = string.match(ROOT, '^(baton:{[^{}]+}/)')
local LEASE_MS = tonumber(ARGV[2])
local KEPT_MS = tonumber(ARGV[3])
local UNIT = 60000
local DAY_MS = 86400000
local BUDGET_KEPT_MS = 2 * DAY_MS
-- With all concurrent leases taken it is unknown when one ends; clients try again after this.
local SLOT_RETRY_MS = 1000

local function read_clock()
  local given = tonumber(ARGV[1])
  if given > 0 then return given end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local NOW = read_clock()

local function whole(number) return string.format('%.0f', number) end

-- Calendar: UTC, proleptic Gregorian (Howard Hinnant, "chrono-compatible low-level date algorithms").
local function civil_from_days(days)
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524)
    - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return year, month, doy - math.floor((153 * mp + 2) / 5) + 1
end

local MONTH_DAYS = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

local function days_of_month(year, month)
  local leap = (year % 4 == 0 and year % 100 ~= 0) or year % 400 == 0
  return (month == 2 and leap) and 29 or MONTH_DAYS[month]
end

-- The budget window of now: its id and its end in ms. period 1 = day, 2 = month.
local function current_window(period)
  local today = math.floor(NOW / DAY_MS)
  local year, month, day = civil_from_days(today)
  if period == 2 then
    local first_of_next = today - day + 1 + days_of_month(year, month)
    return string.format('m%04d%02d', year, month), first_of_next * DAY_MS
  end
  return string.format('d%04d%02d%02d', year, month, day), (today + 1) * DAY_MS
end

-- Levels: 'k' the key, 't' its tenant, 'o' its organisation. Each has limits over all models, and
-- may have limits over single ones. An account is what was used of one such set of limits.
local NUMBERS_OF_LIMITS = {'rpm', 'tpm', 'concurrency', 'budget', 'period', 'cost', 'cost_period',
  'restoring'}
-- The name of a tenant's and an organisation's own limits, where a key has its id.
local WHOLE = '-'

local LEVELS = {}

local function level_of(id, key_id)
  local root = id == 'o' and ORGANISATION or ROOT
  local name = id == 'k' and key_id or WHOLE
  local place = root .. ':limits:' .. name
  if LEVELS[place] then return LEVELS[place] end
  local level = {id = id, root = root, name = name, models = ''}
  LEVELS[place] = level
  -- Most tenants have no limits of their own.
  if id ~= 'k' and redis.call('EXISTS', place) == 0 then return level end
  local stored = redis.call('HMGET', place, 'models', 'revoked', unpack(NUMBERS_OF_LIMITS))
  if stored[3] then
    level.models, level.revoked, level.numbers = stored[1] or '', stored[2] == '1', {}
    for i = 1, #NUMBERS_OF_LIMITS do level.numbers[i] = tonumber(stored[i + 2] or 0) end
  end
  return level
end

-- The numbers of a level's limits over a model, or with '' over all; nothing if it has none. Those of
-- models are in one string: ";name 1 2 3 4 5 6 7 8;other 1 ...;".
local function numbers_of(level, model)
  if model == '' then return level.numbers end
  if level.models == '' then return nil end
  if string.find(model, '[; ]') then return nil end
  local _, last = string.find(level.models, ';' .. model .. ' ', 1, true)
  if not last then return nil end
  local numbers = {}
  for number in string.gmatch(string.match(level.models, '[^;]+', last + 1), '%d+') do
    numbers[#numbers + 1] = tonumber(number)
  end
  return numbers
end

local function refilled(stored, limit, elapsed)
  if limit == 0 then return nil end
  local full = limit * UNIT
  local level = stored and tonumber(stored) or full
  return math.min(full, level + limit * elapsed)
end

-- Accounts that this call has read; save_accounts writes back the touched ones.
local ACCOUNTS = {}

local function read_account(level, model)
  local suffix = model == '' and '' or '@' .. model
  local place = level.root .. ':account:' .. level.name
  local stored = redis.call('HMGET', place, 'requests' .. suffix, 'tokens' .. suffix,
    'at' .. suffix, 'slots' .. suffix)
  local numbers = numbers_of(level, model)
  local account = {
    id = level.id .. (model == '' and '' or 'm'), level = level, place = place, suffix = suffix,
    known = numbers ~= nil, slots = tonumber(stored[4] or 0),
    stored = {requests = stored[1], tokens = stored[2]},
  }
  -- `restoring`: of a hard budget not all that was spent is known yet.
  for i = 1, #NUMBERS_OF_LIMITS do account[NUMBERS_OF_LIMITS[i]] = numbers and numbers[i] or 0 end
  -- Limits that were taken away are still left by the leases that they held.
  account.kept = account.known or stored[4]
  local elapsed = NOW - tonumber(stored[3] or NOW)
  -- A clock that stepped back is taken as it is, at once: else the bucket would stand still.
  account.touched = account.known and elapsed < 0
  elapsed = math.max(0, elapsed)
  account.requests = refilled(stored[1], account.rpm, elapsed)
  account.tokens = refilled(stored[2], account.tpm, elapsed)
  return account
end

local function account_of(id, key_id, model)
  local level = level_of(string.sub(id, 1, 1), key_id)
  if #id == 1 then model = '' end
  local place = level.root .. level.name .. '@' .. model
  if not ACCOUNTS[place] then ACCOUNTS[place] = read_account(level, model) end
  return ACCOUNTS[place]
end

-- The accounts that a request uses: of the key first, of the organisation last. Without that of the
-- key over all models, the key is unknown.
local ACCOUNTS_OF = {}

local function accounts_of(key_id, model)
  local caller = key_id .. '@' .. model
  if ACCOUNTS_OF[caller] then return ACCOUNTS_OF[caller] end
  local accounts = {}
  ACCOUNTS_OF[caller] = accounts
  for _, id in ipairs({'k', 't', ORGANISATION and 'o'}) do
    local level = level_of(id, key_id)
    if level.numbers then accounts[#accounts + 1] = account_of(id, key_id, model) end
    if model ~= '' and numbers_of(level, model) then
      accounts[#accounts + 1] = account_of(id .. 'm', key_id, model)
    end
  end
  return accounts
end

local function is_known(key_id) return level_of('k', key_id).numbers ~= nil end

local function save_account(account)
  local fields = {'at' .. account.suffix, whole(NOW), 'slots' .. account.suffix, whole(account.slots)}
  for _, bucket in ipairs({'requests', 'tokens'}) do
    if account[bucket] then
      fields[#fields + 1] = bucket .. account.suffix
      fields[#fields + 1] = whole(account[bucket])
    elseif account.stored[bucket] then
      redis.call('HDEL', account.place, bucket .. account.suffix)
    end
  end
  redis.call('HSET', account.place, unpack(fields))
end

local function save_accounts()
  for _, account in pairs(ACCOUNTS) do
    if account.touched then save_account(account) end
  end
end

-- Takes `amount` from a bucket; a negative amount gives back. Debt ends at one bucket, so that late
-- settlements of a long outage cannot shut a key out for longer than two minutes.
local function take(account, bucket, limit, amount)
  if account[bucket] then
    local full = limit * UNIT
    account[bucket] = math.max(-full, math.min(full, account[bucket] - amount * UNIT))
  end
  account.touched = account.kept
end

local function take_tokens(account, amount) take(account, 'tokens', account.tpm, amount) end
local function take_request(account) take(account, 'requests', account.rpm, 1) end

-- The time until `amount` can be taken from a bucket, in ms, rounded up; 0 = now.
local function wait_ms(level, limit, amount)
  if not level or amount <= 0 or level >= amount * UNIT then return 0 end
  return math.ceil((amount * UNIT - level) / limit)
end

-- The cost of a request in billionths of the currency, rounded up. A price is a text: for a prompt
-- token, a cached one and an output token thousandths of a billionth, then the price list's version.
local function cost_of(price, prompt, cached, output)
  if string.sub(price, 1, 6) == '0 0 0 ' then return 0 end
  local per_prompt, per_cached, per_output = string.match(price, '^(%d+) (%d+) (%d+) ')
  if not per_prompt then return 0 end
  cached = math.min(cached, prompt)
  return math.ceil(((prompt - cached) * per_prompt + cached * per_cached + output * per_output) / 1000)
end

-- The two kinds of budgets: their limits in an account, and their fields in a window.
local KINDS = {'budget', 'cost'}
local PERIOD = {budget = 'period', cost = 'cost_period'}
local SPENT = {budget = 'spent', cost = 'cost_spent'}
local HELD = {budget = 'held', cost = 'cost_held'}
-- Where an account remembers what its budget has left, once that was looked at.
local LEFT = {budget = 'budget_left', cost = 'cost_left'}

local function budget_key(level, window, suffix)
  return level.root .. ':budget:' .. level.name .. ':' .. window .. suffix
end

-- A hold: an account of a request, and by kind the window of its budget; '' = it has none.
local function new_hold(account)
  local hold = {account = account}
  for _, kind in ipairs(KINDS) do
    hold[kind] = account[kind] > 0 and current_window(account[PERIOD[kind]]) or ''
  end
  return hold
end

-- What a window has spent, and what it holds.
local function budget_of(hold, kind)
  local account = hold.account
  local fields = redis.call('HMGET', budget_key(account.level, hold[kind], account.suffix),
    SPENT[kind], HELD[kind])
  return tonumber(fields[1] or 0), tonumber(fields[2] or 0)
end

local function keep_window(key) redis.call('PEXPIRE', key, whole(31 * DAY_MS + BUDGET_KEPT_MS)) end

-- A window outlasts a month that begins with it; one that may be new gets its time.
local function add_to_window(key, kind, spent, held)
  for _, added in ipairs({{SPENT[kind], spent}, {HELD[kind], held}}) do
    local amount = added[2]
    if amount ~= 0 and redis.call('HINCRBY', key, added[1], whole(amount)) == amount then
      keep_window(key)
    end
  end
end

-- Adds to what the windows of a hold have spent and hold. Amounts are by kind: tokens and cost.
local function charge(hold, spent, held)
  local account = hold.account
  for _, kind in ipairs(KINDS) do
    if hold[kind] ~= '' then
      local key = budget_key(account.level, hold[kind], account.suffix)
      add_to_window(key, kind, spent[kind], held[kind])
      local left = account[LEFT[kind]]
      if left then account[LEFT[kind]] = left - spent[kind] - held[kind] end
    end
  end
end

-- The account with the least left of a bucket; nothing without such a limit.
local function scarcest(accounts, bucket)
  local found
  for _, account in ipairs(accounts) do
    if account[bucket] and (not found or account[bucket] < found[bucket]) then found = account end
  end
  return found
end

-- Limit, remaining, ms until full and the id of the account; 0, 0, 0, '' = unlimited.
local function bucket_state(account, bucket, limit)
  if not account then return {0, 0, 0, ''} end
  local level, full = account[bucket], account[limit]
  return {full, math.max(0, math.floor(level / UNIT)), wait_ms(level, full, full), account.id}
end

-- A reply: `head`, then for requests and for tokens the four values of bucket_state, of the accounts
-- in `bound` if they are named there, else of the scarcest.
local function with_limits(head, accounts, bound)
  for _, bucket in ipairs({'requests', 'tokens'}) do
    local account = bound and bound[bucket] or scarcest(accounts, bucket)
    for _, value in ipairs(bucket_state(account, bucket, bucket == 'requests' and 'rpm' or 'tpm')) do
      head[#head + 1] = value
    end
  end
  return head
end

-- Adds to a reply, of each account: its id, and what is left of its requests, its tokens and its budgets
-- of tokens and money; -1 = not limited, or not looked at.
local function with_accounts(reply, accounts)
  for _, account in ipairs(accounts) do
    reply[#reply + 1] = account.id
    for _, bucket in ipairs({'requests', 'tokens'}) do
      local level = account[bucket]
      reply[#reply + 1] = level and math.max(0, math.floor(level / UNIT)) or -1
    end
    for _, kind in ipairs(KINDS) do
      local left = account[LEFT[kind]]
      reply[#reply + 1] = left and math.max(0, left) or -1
    end
  end
  return reply
end
