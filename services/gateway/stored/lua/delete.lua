-- Deletes an object and all that belongs to it. Reply: 1, or 0 when there is none.
if redis.call('EXISTS', OBJECT) == 0 then return 0 end
drop(ID)
return 1
