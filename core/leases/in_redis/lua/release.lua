-- Set the deadline of held leases to now, and wake P. An unknown one gets its outcome: its grant is still on its way, or
-- was lost with the rest of an earlier Redis. Ended leases are left alone.
-- KEYS   1: the engine's set   2..: outcome key per lease
-- ARGV   1: wake channel   2: outcome_memory_ms   3: margin_ms   4..: lease ids, in the order of the outcome keys
-- return nothing

local now = now_ms()
local found = false
for i = 4, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if not score then
    found = redis.call('SET', KEYS[i - 2], 'released', 'PX', ARGV[2], 'NX') and true or found
  else
    found = true
    if tonumber(score) >= 0 then
      redis.call('ZADD', KEYS[1], -now, ARGV[i])
    end
  end
end
set_expiry(KEYS[1], now, ARGV[3])
-- Also for leases that were released before: the router may be repeating a release whose wake-up was lost.
if found then
  redis.call('PUBLISH', ARGV[1], '1')
end
