-- The deadline of held leases becomes now, and their owner is woken. Unknown and ended leases are left alone.
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
live_on(KEYS[1], now, ARGV[2])
-- Also for a lease that was released before: the caller may be repeating a release whose wake-up got lost.
if found then
  redis.call('PUBLISH', ARGV[1], '1')
end
