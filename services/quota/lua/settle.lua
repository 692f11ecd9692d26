-- ARGV[4..10]: request id, key id, model, prompt tokens, output tokens, usage record (serialized),
-- '1' when the key must be known (if it is not, nothing happens and the outcome is unknown_key).
-- Reply: outcome (settled, repeated, unknown or unknown_key), limit state.
-- The first settle is final. A request that was never reserved here (Redis was down, or lost it) is
-- debited in full in the current window; one that lapsed is corrected by the difference.

local request_id, key_id, model = ARGV[4], ARGV[5], ARGV[6]
local prompt, output = tonumber(ARGV[7]), tonumber(ARGV[8])
local actual = prompt + output

local function settle_unknown()
  local account = account_of(key_id)
  take_request(account)
  take_tokens(account, actual)
  local window = ''
  if account.budget > 0 then window = current_window(account.period) end
  charge_budget(key_id, window, actual, 0)
  return {request_id = request_id, key_id = key_id, prompt = prompt, granted = 0, used = 0,
    produced = 0, expires = 0, window = window, model = model, started = NOW}
end

local function settle_lapsed(lease)
  take_tokens(account_of(lease.key_id), actual - lease.charged)
  charge_budget(lease.key_id, lease.window, actual - lease.charged, 0)
end

local function settle()
  local lease = read_lease(request_id)
  if lease and lease.state == 'settled' then return 'repeated', lease end
  if not lease and ARGV[10] == '1' and not account_of(key_id).known then
    return 'unknown_key', {key_id = key_id}
  end
  local outcome = 'settled'
  if not lease then
    lease, outcome = settle_unknown(), 'unknown'
  elseif lease.state == 'held' then
    release(lease, actual)
  else
    settle_lapsed(lease)
  end
  lease.state, lease.charged, lease.produced = 'settled', actual, output
  write_lease(lease)
  redis.call('XADD', ROOT .. ':usage', '*', 'record', ARGV[9])
  return outcome, lease
end

local outcome, lease = settle()
save_accounts()
return with_limits({outcome}, account_of(lease.key_id))
