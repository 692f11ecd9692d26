-- ARGV[4..9]: request id, its digest, key id, tokens, usage record (serialized),
-- '1' when the key must be known (if it is not, nothing happens and the outcome is unknown_key).
-- Reply: outcome (settled, repeated, unknown or unknown_key), limit state.
-- The first settle is final. A request that was never reserved here (Redis was down, or lost it) is
-- debited in full in the current window; one that lapsed is corrected by the difference.

local request_id, digest, key_id = ARGV[4], ARGV[5], ARGV[6]
local actual = tonumber(ARGV[7])

local function settle_unknown()
  local account = account_of(key_id)
  take_request(account)
  take_tokens(account, actual)
  local window = ''
  if account.budget > 0 then window = current_window(account.period) end
  charge_budget(key_id, window, actual, 0)
end

local function settle_lapsed(lease)
  take_tokens(account_of(lease.key_id), actual - lease.charged)
  charge_budget(lease.key_id, lease.window, actual - lease.charged, 0)
end

local function settle()
  local lease = read_lease(request_id, digest)
  if lease and lease.state == 'settled' then return 'repeated' end
  if not lease and ARGV[9] == '1' and not account_of(key_id).known then return 'unknown_key' end
  local outcome = 'settled'
  if not lease then
    settle_unknown()
    outcome = 'unknown'
  elseif lease.state == 'held' then
    release(lease, actual)
  else
    settle_lapsed(lease)
  end
  remember_settled(request_id, digest)
  redis.call('XADD', ROOT .. ':usage', '*', 'record', ARGV[8])
  return outcome
end

local outcome = settle()
save_accounts()
return with_limits({outcome}, account_of(key_id))
