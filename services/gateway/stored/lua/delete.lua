-- Deletes an object and all that belongs to it. ARGV from 7 on: fields and values that it must have.
-- Reply: 1, or 0 when there is none.
if redis.call('EXISTS', OBJECT) == 0 or not has_all(7) then return 0 end
drop(ID)
return 1
