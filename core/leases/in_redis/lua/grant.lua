-- Hold leases. A held one is never shortened; a released or ended one is left as it is.
-- KEYS   1: the engine's set   2..: outcome key per lease
-- ARGV   1: duration_ms   2: margin_ms   3..: lease ids, in the order of the outcome keys
-- return {number, number, ...}: the leases that are not held, by their number from 1

local now = now_ms()
local deadline = now + ARGV[1]
local refused = {}
for i = 3, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score then
    if tonumber(score) >= 0 then
      redis.call('ZADD', KEYS[1], 'GT', deadline, ARGV[i])
    else
      refused[#refused + 1] = i - 2
    end
  elseif outcome_of(KEYS[i - 1]) == 'unknown' then
    redis.call('ZADD', KEYS[1], deadline, ARGV[i])
  else
    refused[#refused + 1] = i - 2
  end
end
set_expiry(KEYS[1], now, ARGV[2])
return refused
