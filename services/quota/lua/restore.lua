-- KEYS[1]: the root of a tenant, or of an organisation. ARGV[4..8]: the name of the limits (a key id, or
-- '-'), budget window, archive, tokens and cost that the archive knows as spent.
-- Adds an archive's part to what the window has spent, once.

local key = ROOT .. ':budget:' .. ARGV[4] .. ':' .. ARGV[5]
if redis.call('HSETNX', key, 'from:' .. ARGV[6], ARGV[7] .. ' ' .. ARGV[8]) == 1 then
  add_to_window(key, 'budget', tonumber(ARGV[7]), 0)
  add_to_window(key, 'cost', tonumber(ARGV[8]), 0)
  keep_window(key)
end
return 0
