-- The first part of every script, which all share: time, rate buckets, concurrency, budget windows.
--
-- KEYS[1] is the tenant's root, "baton:{tenant}"; every other key is the root plus a suffix, hence
-- in the same hash slot. ARGV[1] is the time in ms, 0 = the server's own TIME (only tests send
-- another). ARGV[2] is the length of a lease and ARGV[3] the time for which finished requests are
-- remembered, both in ms. All data is in ARGV.
--
-- A bucket's level is an integer in units of 1/60000 request or token: a bucket then gains `limit`
-- units per millisecond, and nothing is ever rounded.

local ROOT = KEYS[1]
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

local function refilled(stored, limit, elapsed)
  if limit == 0 then return nil end
  local full = limit * UNIT
  local level = stored and tonumber(stored) or full
  return math.min(full, level + limit * elapsed)
end

-- Accounts that this call has read, by key id; save_accounts writes back the touched ones.
local ACCOUNTS = {}

local function account_of(key_id)
  if ACCOUNTS[key_id] then return ACCOUNTS[key_id] end
  local limits = redis.call('HMGET', ROOT .. ':limits:' .. key_id,
    'rpm', 'tpm', 'concurrency', 'budget', 'period', 'revoked', 'restoring')
  local stored = redis.call('HMGET', ROOT .. ':account:' .. key_id,
    'requests', 'tokens', 'at', 'slots')
  local account = {
    key_id = key_id,
    known = limits[1] and true or false,
    revoked = limits[6] == '1',
    -- A hard budget of which not all that was spent is known yet.
    restoring = limits[7] == '1',
    rpm = tonumber(limits[1] or 0),
    tpm = tonumber(limits[2] or 0),
    concurrency = tonumber(limits[3] or 0),
    budget = tonumber(limits[4] or 0),
    period = tonumber(limits[5] or 0),
    slots = tonumber(stored[4] or 0),
  }
  local elapsed = NOW - tonumber(stored[3] or NOW)
  -- A clock that stepped back is taken as it is, at once: else the bucket would stand still.
  account.touched = account.known and elapsed < 0
  elapsed = math.max(0, elapsed)
  account.requests = refilled(stored[1], account.rpm, elapsed)
  account.tokens = refilled(stored[2], account.tpm, elapsed)
  ACCOUNTS[key_id] = account
  return account
end

local function save_accounts()
  for key_id, account in pairs(ACCOUNTS) do
    if account.touched then
      local key = ROOT .. ':account:' .. key_id
      redis.call('HSET', key, 'at', whole(NOW), 'slots', whole(account.slots))
      for _, bucket in ipairs({'requests', 'tokens'}) do
        if account[bucket] then
          redis.call('HSET', key, bucket, whole(account[bucket]))
        else
          redis.call('HDEL', key, bucket)
        end
      end
    end
  end
end

-- Takes `amount` from a bucket; a negative amount gives back. Debt ends at one bucket, so that late
-- settlements of a long outage cannot shut a key out for longer than two minutes.
local function take(account, bucket, limit, amount)
  if account[bucket] then
    local full = limit * UNIT
    account[bucket] = math.max(-full, math.min(full, account[bucket] - amount * UNIT))
  end
  account.touched = account.known
end

local function take_tokens(account, amount) take(account, 'tokens', account.tpm, amount) end
local function take_request(account) take(account, 'requests', account.rpm, 1) end

-- The time until `amount` can be taken from a bucket, in ms, rounded up; 0 = now.
local function wait_ms(level, limit, amount)
  if not level or amount <= 0 or level >= amount * UNIT then return 0 end
  return math.ceil((amount * UNIT - level) / limit)
end

local function budget_key(key_id, window) return ROOT .. ':budget:' .. key_id .. ':' .. window end

-- Tokens spent and tokens held in a window.
local function budget_of(key_id, window)
  local fields = redis.call('HMGET', budget_key(key_id, window), 'spent', 'held')
  return tonumber(fields[1] or 0), tonumber(fields[2] or 0)
end

-- Adds to what a window has spent and holds; '' = the request has no budget.
local function charge_budget(key_id, window, spent, held)
  if window == '' then return end
  local key = budget_key(key_id, window)
  if spent ~= 0 then redis.call('HINCRBY', key, 'spent', whole(spent)) end
  if held ~= 0 then redis.call('HINCRBY', key, 'held', whole(held)) end
  redis.call('PEXPIRE', key, whole(31 * DAY_MS + BUDGET_KEPT_MS))
end

-- limit, remaining, ms until full; for requests and for tokens. 0, 0, 0 = unlimited.
local function limit_state(account)
  local state = {}
  for _, bucket in ipairs({{account.requests, account.rpm}, {account.tokens, account.tpm}}) do
    local level, limit = bucket[1], bucket[2]
    state[#state + 1] = limit
    state[#state + 1] = level and math.max(0, math.floor(level / UNIT)) or 0
    state[#state + 1] = wait_ms(level, limit, limit)
  end
  return state
end

-- A reply: `head` followed by the six numbers of limit_state.
local function with_limits(head, account)
  for _, number in ipairs(limit_state(account)) do head[#head + 1] = number end
  return head
end
