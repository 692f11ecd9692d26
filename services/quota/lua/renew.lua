-- ARGV[4..]: per lease request id, used, produced, wanted output tokens (absolute numbers).
-- Reply: per lease, in the same order: state (held, refused or lost), granted, ms until expiry.
-- `used` is what was produced plus the most that can be produced before the next renewal: asked
-- first, produced after. An extension is granted in full or refused; then the old grant holds.

local function extend(lease, wanted)
  local more = wanted - lease.granted
  local account = account_of(lease.key_id)
  if more <= 0 then return 'held' end
  if wait_ms(account.tokens, account.tpm, more) > 0
    or not budget_has_room(account, lease.window, more) then
    return 'refused'
  end
  take_tokens(account, more)
  charge_budget(lease.key_id, lease.window, 0, more)
  lease.granted = wanted
  return 'held'
end

-- Puts a lapsed lease's hold back in place, when there is still room for it.
local function reopen(lease)
  local account = account_of(lease.key_id)
  local more = estimate(lease) - lease.charged
  if wait_ms(account.tokens, account.tpm, more) > 0
    or (account.concurrency > 0 and account.slots >= account.concurrency)
    or not budget_has_room(account, lease.window, more) then
    return false
  end
  take_tokens(account, more)
  account.slots = account.slots + 1
  charge_budget(lease.key_id, lease.window, -lease.charged, estimate(lease))
  lease.state, lease.charged = 'held', 0
  return true
end

local function renew(request_id, used, produced, wanted)
  local lease = read_lease(request_id)
  if not lease or lease.state == 'settled' then return 'lost', 0, 0 end
  if lease.state == 'held' and lease.expires <= NOW then lapse(lease) end
  if lease.state == 'lapsed' and not reopen(lease) then return 'lost', 0, 0 end
  local state = extend(lease, wanted)
  lease.used = math.min(math.max(lease.used, used), lease.granted)
  lease.produced = math.min(math.max(lease.produced, produced), lease.granted)
  lease.expires = math.max(lease.expires, NOW + LEASE_MS)
  write_lease(lease)
  return state, lease.granted, lease.expires - NOW
end

reap()
local reply = {}
for i = 4, #ARGV, 4 do
  local state, granted, ms =
    renew(ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]))
  reply[#reply + 1] = state
  reply[#reply + 1] = granted
  reply[#reply + 1] = ms
end
save_accounts()
return reply
