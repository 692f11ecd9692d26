-- ARGV[4..8]: request id, its digest, key id, model, price. ARGV[9..11]: prompt tokens, how many of
-- them were cached, output tokens. ARGV[12]: usage record (serialized). ARGV[13]: '1' when the key must
-- be known (if it is not, nothing happens and the outcome is unknown_key).
-- Reply: outcome (settled, repeated, unknown or unknown_key).
-- The first settle is final. A request that was never reserved here (Redis was down, or lost it) is
-- debited in full in the current windows; one that lapsed is corrected by the difference. A lease is
-- settled at the price at which it was reserved.

local request_id, digest, key_id, model = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local prompt, cached, output = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])

local function settle_unknown(actual)
  for _, each in ipairs((new_holds(key_id, model))) do
    take_request(each.account)
    take_tokens(each.account, actual.budget)
    charge(each, actual, NOTHING)
  end
end

local function settle_lapsed(lease, actual)
  local more = difference(actual, charged(lease))
  for _, each in ipairs(holds_of(lease)) do
    take_tokens(each.account, more.budget)
    charge(each, more, NOTHING)
  end
end

local function settle()
  local lease = read_lease(request_id, digest)
  if lease and lease.state == 'settled' then return 'repeated' end
  if not lease and ARGV[13] == '1' and not is_known(key_id) then return 'unknown_key' end
  local price = lease and lease.price or ARGV[8]
  local actual = amount_of(price, prompt, cached, output)
  local outcome = 'settled'
  if not lease then
    settle_unknown(actual)
    outcome = 'unknown'
  elseif lease.state == 'held' then
    release(lease, actual)
  else
    settle_lapsed(lease, actual)
  end
  remember_settled(request_id, digest)
  redis.call('XADD', ROOT .. ':usage', '*', 'record', ARGV[12], 'cost', whole(actual.cost),
    'price', price)
  return outcome
end

local outcome = settle()
save_accounts()
return outcome
