-- Adds items at the end of a conversation. ARGV from 7 on: the items.
-- Reply: empty when it is done; else gone or too_large.
if redis.call('EXISTS', OBJECT) == 0 then return 'gone' end
local more = 0
for i = 7, #ARGV do more = more + #ARGV[i] end
if size_with(more) > MAX_OBJECT_BYTES then return 'too_large' end
for i = 7, #ARGV do redis.call('RPUSH', OBJECT .. ':items', ARGV[i]) end
charge(more)
return ''
