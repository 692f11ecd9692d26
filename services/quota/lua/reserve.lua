-- ARGV[4..9]: request id, its digest, key id, model, prompt tokens, output tokens.
-- Reply: outcome, granted output tokens, ms (until expiry, or to wait), limit state.
-- Nothing is taken unless everything fits. Repeating a granted reservation returns the same grant.

local request_id, digest, key_id, model = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local prompt, output = tonumber(ARGV[8]), tonumber(ARGV[9])
local amount = prompt + output

reap()
local account = account_of(key_id)

local function answer(outcome, granted, ms)
  save_accounts()
  return with_limits({outcome, granted, ms}, account)
end

local known = read_lease(request_id, digest)
if known then
  if known.state == 'held' and known.key_id == key_id then
    return answer('granted', known.granted, known.expires - NOW)
  end
  return answer('used_request_id', 0, 0)
end
if not account.known then return answer('unknown_key', 0, 0) end
if account.revoked then return answer('revoked_key', 0, 0) end
if account.restoring then return answer('restoring', 0, 0) end
if account.tpm > 0 and amount > account.tpm then return answer('exceeds_tokens', 0, 0) end

local window, window_end = '', 0
if account.budget > 0 then
  window, window_end = current_window(account.period)
  if not budget_has_room(account, window, amount) then
    return answer('budget', 0, amount <= account.budget and window_end - NOW or 0)
  end
end

local requests_ms = wait_ms(account.requests, account.rpm, 1)
local tokens_ms = wait_ms(account.tokens, account.tpm, amount)
local slots_ms = 0
if account.concurrency > 0 and account.slots >= account.concurrency then slots_ms = SLOT_RETRY_MS end
local longest_ms = math.max(requests_ms, tokens_ms, slots_ms)
if requests_ms > 0 then return answer('requests', 0, longest_ms) end
if tokens_ms > 0 then return answer('tokens', 0, longest_ms) end
if slots_ms > 0 then return answer('concurrency', 0, longest_ms) end

take_request(account)
local lease = {request_id = request_id, key_id = key_id, prompt = prompt, granted = output,
  used = NEVER_RENEWED, produced = 0, expires = NOW + LEASE_MS, window = window, charged = 0,
  model = model, started = NOW}
hold(lease)
write_lease(lease)
return answer('granted', output, LEASE_MS)
