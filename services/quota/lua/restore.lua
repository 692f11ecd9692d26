-- ARGV[4..7]: key id, budget window, archive, tokens that the archive knows as spent.
-- Adds an archive's part to what the window has spent, once.

local key = budget_key(ARGV[4], ARGV[5])
if redis.call('HSETNX', key, 'from:' .. ARGV[6], ARGV[7]) == 1 then
  charge_budget(ARGV[4], ARGV[5], tonumber(ARGV[7]), 0)
end
return 0
