-- ARGV[4..9]: request id, its digest, key id, model, price, prompt tokens. ARGV[10], ARGV[11]: output
-- tokens, and the fewest that are taken instead of them (0 = all or nothing). ARGV[12]: the fewest
-- prompt tokens, if their number is an estimate (0 = it is exact). ARGV[13]: '1' when the amounts
-- replace those of the lease that an estimate opened.
-- Reply: outcome, granted output tokens, prompt tokens held, ms (until expiry, or to wait), the
-- account that refuses and the kind of its budget, limit state, what is left of each account.
-- Nothing is taken unless everything fits at every level. Repeating a granted reservation returns the
-- same grant. A replacement that is refused leaves the lease as it is.

local request_id, digest, key_id, model = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local prompt, fewest_prompt = tonumber(ARGV[9]), tonumber(ARGV[12])
-- The largest part of a minute that is granted at once where the client set no maximum.
local SHARES = 8
local NEVER = math.huge

reap()
local accounts = accounts_of(key_id, model)
-- The lease that this call opens or changes, and what it held before.
local lease, before, holds

-- `refusal`: the account that refuses, the kind of its budget, and in `bound` by bucket the accounts
-- that the reply speaks of.
local function answer(outcome, ms, refusal)
  save_accounts()
  local account = refusal and refusal.account
  local is_held = outcome == 'granted'
  local head = {outcome, is_held and lease.granted or 0, is_held and lease.prompt or 0, ms,
    account and account.id or '', refusal and refusal.kind or ''}
  return with_accounts(with_limits(head, accounts, refusal and refusal.bound), accounts)
end

-- The most output tokens that fit under a budget of money beside the prompt.
local function payable(budget)
  local per_output = tonumber(string.match(lease.price, '^%d+ %d+ (%d+) ') or 0)
  if per_output == 0 then return math.huge end
  return math.floor((budget - cost_of(lease.price, prompt, 0, 0)) * 1000 / per_output)
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

local function refuse_for_size(amount)
  local found
  for _, account in ipairs(accounts) do
    if account.tpm > 0 and amount.budget > account.tpm and (not found or account.tpm < found.tpm) then
      found = account
    end
  end
  if not found then return nil end
  return {outcome = 'exceeds_tokens', ms = 0, account = found, bound = {tokens = found}}
end

local function refuse_for_budget(amount)
  local found, found_ms = nil, 0
  for _, spent in ipairs(without_room(holds, difference(amount, before))) do
    local _, window_end = current_window(spent.account[PERIOD[spent.kind]])
    local ms = amount[spent.kind] > spent.account[spent.kind] and NEVER or window_end - NOW
    if ms > found_ms then found, found_ms = spent, ms end
  end
  if not found then return nil end
  return {outcome = 'budget', ms = found_ms < NEVER and found_ms or 0, account = found.account,
    kind = found.kind}
end

-- A lease that is held has its request and its slot.
local function refuse_for_rate(amount)
  local requests, requests_ms, slots, slots_ms = nil, 0, nil, 0
  if not lease.state then
    requests, requests_ms = longest(function(a) return wait_ms(a.requests, a.rpm, 1) end)
    slots, slots_ms = longest(function(a)
      return a.concurrency > 0 and a.slots >= a.concurrency and SLOT_RETRY_MS or 0
    end)
  end
  local more = amount.budget - before.budget
  local tokens, tokens_ms = longest(function(a) return wait_ms(a.tokens, a.tpm, more) end)
  local bound = {requests = requests, tokens = tokens}
  local ms = math.max(requests_ms, tokens_ms, slots_ms)
  if requests then return {outcome = 'requests', ms = ms, account = requests, bound = bound} end
  if tokens then return {outcome = 'tokens', ms = ms, account = tokens, bound = bound} end
  if slots then return {outcome = 'concurrency', ms = ms, account = slots} end
end

-- Returns the output tokens to grant beside `prompt`, their amount, and the refusal if there is one.
local function attempt()
  local output = fitting(tonumber(ARGV[10]), tonumber(ARGV[11]))
  local amount = amount_of(lease.price, prompt, 0, output)
  return output, amount,
    refuse_for_size(amount) or refuse_for_budget(amount) or refuse_for_rate(amount)
end

local function new_lease()
  local names
  holds, names = new_holds(key_id, model)
  lease = {request_id = request_id, key_id = key_id, produced = 0, holds = names, charged = 0,
    charged_cost = 0, model = model, price = ARGV[8], started = NOW, parsed = holds}
  before = NOTHING
end

local known = read_lease(request_id, digest)
if known then
  if known.state ~= 'held' or known.key_id ~= key_id then return answer('used_request_id', 0) end
  lease = known
  local is_repeated = ARGV[13] == '0' or known.prompt == prompt
  if is_repeated then return answer('granted', known.expires - NOW) end
  holds, before = holds_of(known), estimate(known)
else
  if not is_known(key_id) then return answer('unknown_key', 0) end
  if level_of('k', key_id).revoked then return answer('revoked_key', 0) end
  new_lease()
end
if is_restoring(holds) then return answer('restoring', 0) end

local output, amount, refusal = attempt()
if refusal and 0 < fewest_prompt and fewest_prompt < prompt then
  prompt = fewest_prompt
  output, amount, refusal = attempt()
end
if refusal then return answer(refusal.outcome, refusal.ms, refusal) end

local is_new = not lease.state
lease.prompt, lease.granted, lease.expires = prompt, output, NOW + LEASE_MS
lease.used = tonumber(ARGV[12]) > 0 and NEVER_TOKENIZED or NEVER_RENEWED
if is_new then
  for _, each in ipairs(holds) do take_request(each.account) end
  hold(lease)
else
  change_hold(lease, difference(amount, before))
end
write_lease(lease)
return answer('granted', LEASE_MS)
