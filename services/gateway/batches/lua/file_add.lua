-- Keeps a file whose content is there. ARGV[6] and [7]: what a client sees of it, its bytes.
-- Reply: empty when it is done; else too_many, full, or gone: its content is not whole.
local CONTENT, NUM_BYTES = RECORD .. ':content', tonumber(ARGV[7])
local reason = refusal(NUM_BYTES + OBJECT_BYTES)
if reason == '' and redis.call('STRLEN', CONTENT) ~= NUM_BYTES then reason = 'gone' end
if reason ~= '' then
  redis.call('DEL', CONTENT)
  return reason
end
redis.call('HSET', FILES, ID, ARGV[6])
charge(ID, NUM_BYTES + OBJECT_BYTES)
return ''
