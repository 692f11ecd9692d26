-- ARGV[4..]: per lease its request id and digest, used, produced and wanted output tokens (absolute numbers),
-- and what its holder was granted: key id ('' = not given), model, prompt tokens, output tokens.
-- Reply: per lease, in the same order: state (held, short, refused, lost; unknown_key: the store lost
-- the keys, too), granted, ms until expiry, ms to wait (short).
-- `used` is what was produced plus the most that can be produced before the next renewal: tokens are
-- produced only after they were asked for. An extension is granted in full or not at all: then the old
-- grant holds. `short`: the minute's tokens have no room for it now; `refused`: the budget has none.

local function extend(lease, wanted)
  local more = wanted - lease.granted
  local account = account_of(lease.key_id)
  if more <= 0 then return 'held', 0 end
  -- What was spent of the budget will be known soon: the answer pauses until then.
  if account.restoring then return 'short', 1000 end
  if not budget_has_room(account, lease.window, more) then return 'refused', 0 end
  local short_ms = wait_ms(account.tokens, account.tpm, more)
  if short_ms > 0 then return 'short', short_ms end
  take_tokens(account, more)
  charge_budget(lease.key_id, lease.window, 0, more)
  lease.granted = wanted
  return 'held', 0
end

-- Puts a lapsed lease's hold back in place, when there is still room for it. The minute may go into
-- debt: its request was admitted once, and an outage must not end it for a rate.
local function reopen(lease)
  local account = account_of(lease.key_id)
  local more = estimate(lease) - lease.charged
  if (account.concurrency > 0 and account.slots >= account.concurrency)
    or not budget_has_room(account, lease.window, more) then
    return false
  end
  hold(lease)
  return true
end

-- Holds again a lease that the store lost. Its request was admitted once: only the budget may still
-- refuse it. Returns nothing if it does.
local function recreate(holder)
  local account = account_of(holder.key_id)
  local window = ''
  if account.budget > 0 then window = current_window(account.period) end
  local lease = {request_id = holder.request_id, key_id = holder.key_id, model = holder.model,
    prompt = holder.prompt, granted = holder.granted, used = NEVER_RENEWED, produced = 0,
    expires = NOW + LEASE_MS, window = window, charged = 0, started = NOW}
  if not budget_has_room(account, window, estimate(lease)) then return nil end
  hold(lease)
  return lease
end

-- Returns the lease, held; or nothing and the state to answer.
local function held_lease(holder)
  local lease = read_lease(holder.request_id, holder.digest)
  if not lease then
    if holder.key_id == '' then return nil, 'lost' end
    if not account_of(holder.key_id).known then return nil, 'unknown_key' end
    return recreate(holder), 'lost'
  end
  if lease.state == 'settled' then return nil, 'lost' end
  if lease.state == 'held' and lease.expires <= NOW then lapse(lease) end
  if lease.state == 'lapsed' and not reopen(lease) then return nil, 'lost' end
  return lease
end

local function renew(holder)
  local lease, refusal = held_lease(holder)
  if not lease then return refusal, 0, 0, 0 end
  local state, short_ms = extend(lease, holder.wanted)
  lease.used = math.min(math.max(lease.used, holder.used), lease.granted)
  lease.produced = math.min(math.max(lease.produced, holder.produced), lease.granted)
  lease.expires = math.max(lease.expires, NOW + LEASE_MS)
  write_lease(lease)
  return state, lease.granted, lease.expires - NOW, short_ms
end

reap()
local reply = {}
for i = 4, #ARGV, 9 do
  local state, granted, ms, short_ms = renew({request_id = ARGV[i], digest = ARGV[i + 1],
    used = tonumber(ARGV[i + 2]), produced = tonumber(ARGV[i + 3]), wanted = tonumber(ARGV[i + 4]),
    key_id = ARGV[i + 5], model = ARGV[i + 6], prompt = tonumber(ARGV[i + 7]),
    granted = tonumber(ARGV[i + 8])})
  reply[#reply + 1] = state
  reply[#reply + 1] = granted
  reply[#reply + 1] = ms
  reply[#reply + 1] = short_ms
end
save_accounts()
return reply
