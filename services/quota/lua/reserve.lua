-- ARGV[4..9]: request id, its digest, key id, model, price, prompt tokens. ARGV[10], ARGV[11]: output
-- tokens, and the fewest that are taken instead of them (0 = all or nothing).
-- Reply: outcome, granted output tokens, ms (until expiry, or to wait), the account that refuses and
-- the kind of its budget, limit state.
-- Nothing is taken unless everything fits at every level. Repeating a granted reservation returns the
-- same grant.

local request_id, digest, key_id, model = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local price, prompt = ARGV[8], tonumber(ARGV[9])
-- The largest part of a minute that is granted at once where the client set no maximum.
local SHARES = 8
local NEVER = math.huge

reap()
local accounts = accounts_of(key_id, model)

-- `bound`: the account that refuses, by the bucket that it speaks of.
local function answer(outcome, granted, ms, account, kind, bound)
  save_accounts()
  local head = {outcome, granted, ms, account and account.id or '', kind or ''}
  return with_limits(head, accounts, bound)
end

-- The most output tokens that fit under a budget of money beside the prompt.
local function payable(budget)
  local per_output = tonumber(string.match(price, '^%d+ %d+ (%d+) ') or 0)
  if per_output == 0 then return math.huge end
  return math.floor((budget - cost_of(price, prompt, 0, 0)) * 1000 / per_output)
end

-- The output tokens to grant: those that were asked for, or as many as can ever fit.
local function fitting(output, fewest)
  if fewest == 0 then return output end
  local room = output
  for _, account in ipairs(accounts) do
    if account.tpm > 0 then
      room = math.min(room, math.floor(account.tpm / SHARES), account.tpm - prompt)
    end
    if account.budget > 0 then room = math.min(room, account.budget - prompt) end
    if account.cost > 0 then room = math.min(room, payable(account.cost)) end
  end
  return math.max(room, fewest)
end

-- The account whose wait is the longest, and that wait; nothing if all have room.
local function longest(wait)
  local found, found_ms
  for _, account in ipairs(accounts) do
    local ms = wait(account)
    if ms > 0 and (not found or ms > found_ms) then found, found_ms = account, ms end
  end
  return found, found_ms or 0
end

local output = fitting(tonumber(ARGV[10]), tonumber(ARGV[11]))
local holds, names = new_holds(key_id, model)
local lease = {request_id = request_id, key_id = key_id, prompt = prompt, granted = output,
  used = NEVER_RENEWED, produced = 0, expires = NOW + LEASE_MS, holds = names, charged = 0,
  charged_cost = 0, model = model, price = price, started = NOW, parsed = holds}
local amount = estimate(lease)

local function refuse_for_size()
  local found
  for _, account in ipairs(accounts) do
    if account.tpm > 0 and amount.budget > account.tpm and (not found or account.tpm < found.tpm) then
      found = account
    end
  end
  return found and answer('exceeds_tokens', 0, 0, found, '', {tokens = found})
end

local function refuse_for_budget()
  local found, found_ms = nil, 0
  for _, spent in ipairs(without_room(holds, amount)) do
    local _, window_end = current_window(spent.account[PERIOD[spent.kind]])
    local ms = amount[spent.kind] > spent.account[spent.kind] and NEVER or window_end - NOW
    if ms > found_ms then found, found_ms = spent, ms end
  end
  if not found then return nil end
  return answer('budget', 0, found_ms < NEVER and found_ms or 0, found.account, found.kind)
end

local function refuse_for_rate()
  local requests, requests_ms = longest(function(a) return wait_ms(a.requests, a.rpm, 1) end)
  local tokens, tokens_ms = longest(function(a) return wait_ms(a.tokens, a.tpm, amount.budget) end)
  local slots, slots_ms = longest(function(a)
    return a.concurrency > 0 and a.slots >= a.concurrency and SLOT_RETRY_MS or 0
  end)
  local bound = {requests = requests, tokens = tokens}
  local ms = math.max(requests_ms, tokens_ms, slots_ms)
  if requests then return answer('requests', 0, ms, requests, '', bound) end
  if tokens then return answer('tokens', 0, ms, tokens, '', bound) end
  if slots then return answer('concurrency', 0, ms, slots) end
end

local known = read_lease(request_id, digest)
if known then
  if known.state == 'held' and known.key_id == key_id then
    return answer('granted', known.granted, known.expires - NOW)
  end
  return answer('used_request_id', 0, 0)
end
if not is_known(key_id) then return answer('unknown_key', 0, 0) end
if level_of('k', key_id).revoked then return answer('revoked_key', 0, 0) end
if is_restoring(holds) then return answer('restoring', 0, 0) end
local refusal = refuse_for_size() or refuse_for_budget() or refuse_for_rate()
if refusal then return refusal end

for _, each in ipairs(holds) do take_request(each.account) end
hold(lease)
write_lease(lease)
return answer('granted', output, LEASE_MS)
