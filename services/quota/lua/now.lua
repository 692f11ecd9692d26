-- Reply: the time in ms.

return NOW
