-- deadline = max(old, now + duration) for every held lease.
-- KEYS   1: the engine's set   2..: outcome key per lease
-- ARGV   1: duration_ms   2: margin_ms   3..: lease ids, in the order of the outcome keys
-- return {state, remaining_ms, state, remaining_ms, ...} in the order of the lease ids

local now = now_ms()
local answers = {}
for i = 3, #ARGV do
  local state, remaining = 'held', 0
  local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]) or nil)
  if not score then
    state = outcome_of(KEYS[i - 1])
  elseif score < 0 then
    state = 'released'
  else
    local deadline = math.max(bounded(score, now), now + ARGV[1])
    redis.call('ZADD', KEYS[1], deadline, ARGV[i])
    remaining = deadline - now
  end
  answers[#answers + 1] = state
  answers[#answers + 1] = remaining
end
set_expiry(KEYS[1], now, ARGV[2])
return answers
