-- Set the deadline of held leases to now, and wake P. Unknown and ended leases are left alone.
-- KEYS   1: the engine's set
-- ARGV   1: wake channel   2: margin_ms   3..: lease ids
-- return nothing

local now = now_ms()
local found = false
for i = 3, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score then
    found = true
    if tonumber(score) >= 0 then
      redis.call('ZADD', KEYS[1], -now, ARGV[i])
    end
  end
end
set_expiry(KEYS[1], now, ARGV[2])
-- Also for leases that were released before: the router may be repeating a release whose wake-up was lost.
if found then
  redis.call('PUBLISH', ARGV[1], '1')
end
