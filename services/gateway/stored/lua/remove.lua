-- Removes one item of a conversation, which is ARGV[7] to the letter. Reply: 1, or 0.
local num = redis.call('LREM', OBJECT .. ':items', 1, ARGV[7])
if num > 0 then charge(-#ARGV[7]) end
return num
