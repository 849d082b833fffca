-- deadline = max(old, now + duration) for every held lease.
-- KEYS   1: the engine's set
-- ARGV   1: duration_ms   2: margin_ms   3: lease ids, with commas between
-- return {duration_ms, number, remaining_ms, number, remaining_ms, ...}: the leases by their number from 1 that have
--   another time left than duration_ms. remaining_ms is -1 for a released one and -2 for one that is not in the set;
--   outcomes.lua says what became of such a lease.

local now = now_ms()
local duration = tonumber(ARGV[1])
local ids = {}
for id in string.gmatch(ARGV[3], '[^,]+') do
  ids[#ids + 1] = id
end
local answers, added = {duration}, {}
local scores = redis.call('ZMSCORE', KEYS[1], unpack(ids))
for i = 1, #ids do
  local score = tonumber(scores[i] or nil)
  local remaining = duration
  if not score then
    remaining = -2
  elseif score < 0 then
    remaining = -1
  else
    local deadline = math.max(bounded(score, now), now + duration)
    remaining = deadline - now
    added[#added + 1] = deadline
    added[#added + 1] = ids[i]
  end
  if remaining ~= duration then
    answers[#answers + 1] = i
    answers[#answers + 1] = remaining
  end
end
if #added > 0 then
  redis.call('ZADD', KEYS[1], unpack(added))
end
set_expiry(KEYS[1], now, ARGV[2])
return answers
