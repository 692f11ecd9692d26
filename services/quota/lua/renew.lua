-- ARGV[4..]: per lease its request id and digest, used, produced and wanted output tokens (absolute numbers),
-- and what its holder was granted: key id ('' = not given), model, price, prompt tokens, output tokens.
-- Reply: per lease, in the same order: state (held, short, refused, lost; unknown_key: the store lost
-- the keys, too), granted, ms until expiry, ms to wait (short), the account that has no room (short,
-- refused) and the kind of its budget (refused).
-- `used` is what was produced plus the most that can be produced before the next renewal: tokens are
-- produced only after they were asked for. An extension is granted in full or not at all: then the old
-- grant holds. `short`: the minute's tokens have no room for it now; `refused`: the budget has none.

-- Returns the state, the ms to wait, and the account and kind of budget that have no room.
local function extend(lease, wanted)
  local tokens = wanted - lease.granted
  if tokens <= 0 then return 'held', 0 end
  local holds = holds_of(lease)
  -- What was spent of the budget will be known soon: the answer pauses until then.
  if is_restoring(holds) then return 'short', 1000 end
  local more = difference(amount_of(lease.price, lease.prompt, 0, wanted), estimate(lease))
  local spent = without_room(holds, more)[1]
  if spent then return 'refused', 0, spent.account.id, spent.kind end
  local short_ms, short = 0, nil
  for _, each in ipairs(holds) do
    local ms = wait_ms(each.account.tokens, each.account.tpm, tokens)
    if ms > short_ms then short_ms, short = ms, each.account end
  end
  if short then return 'short', short_ms, short.id end
  change_hold(lease, more)
  lease.granted = wanted
  return 'held', 0
end

-- Puts a lapsed lease's hold back in place, when there is still room for it. The minute may go into
-- debt: its request was admitted once, and an outage must not end it for a rate.
local function reopen(lease)
  local holds = holds_of(lease)
  local more = difference(estimate(lease), charged(lease))
  if not has_slots(holds) or #without_room(holds, more) > 0 then return false end
  hold(lease)
  return true
end

-- Holds again a lease that the store lost. Its request was admitted once: only the budget may still
-- refuse it. Returns nothing if it does.
local function recreate(holder)
  local holds, names = new_holds(holder.key_id, holder.model)
  local lease = {request_id = holder.request_id, key_id = holder.key_id, model = holder.model,
    price = holder.price, prompt = holder.prompt, granted = holder.granted, used = NEVER_RENEWED,
    produced = 0, expires = NOW + LEASE_MS, holds = names, parsed = holds, charged = 0,
    charged_cost = 0, started = NOW}
  if #without_room(holds, estimate(lease)) > 0 then return nil end
  hold(lease)
  return lease
end

-- Returns the lease, held; or nothing and the state to answer.
local function held_lease(holder)
  local lease = read_lease(holder.request_id, holder.digest)
  if not lease then
    if holder.key_id == '' then return nil, 'lost' end
    if not is_known(holder.key_id) then return nil, 'unknown_key' end
    return recreate(holder), 'lost'
  end
  if lease.state == 'settled' then return nil, 'lost' end
  if lease.state == 'held' and lease.expires <= NOW then lapse(lease) end
  if lease.state == 'lapsed' and not reopen(lease) then return nil, 'lost' end
  return lease
end

-- The holder has tokenized the prompt, for which its reservation held an estimate.
local function correct_prompt(lease, prompt)
  local more = difference(amount_of(lease.price, prompt, 0, lease.granted), estimate(lease))
  change_hold(lease, more)
  lease.prompt = prompt
end

local function renew(holder)
  local lease, refusal = held_lease(holder)
  if not lease then return refusal, 0, 0, 0, '', '' end
  if holder.key_id ~= '' and holder.prompt ~= lease.prompt then correct_prompt(lease, holder.prompt) end
  local state, short_ms, account, kind = extend(lease, holder.wanted)
  lease.used = math.min(math.max(lease.used, holder.used), lease.granted)
  lease.produced = math.min(math.max(lease.produced, holder.produced), lease.granted)
  lease.expires = math.max(lease.expires, NOW + LEASE_MS)
  write_lease(lease)
  return state, lease.granted, lease.expires - NOW, short_ms, account or '', kind or ''
end

reap()
local reply = {}
for i = 4, #ARGV, 10 do
  local answer = {renew({request_id = ARGV[i], digest = ARGV[i + 1],
    used = tonumber(ARGV[i + 2]), produced = tonumber(ARGV[i + 3]), wanted = tonumber(ARGV[i + 4]),
    key_id = ARGV[i + 5], model = ARGV[i + 6], price = ARGV[i + 7], prompt = tonumber(ARGV[i + 8]),
    granted = tonumber(ARGV[i + 9])})}
  for _, value in ipairs(answer) do reply[#reply + 1] = value end
end
save_accounts()
return reply
