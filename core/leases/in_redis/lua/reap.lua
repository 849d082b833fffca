-- P ends `done` and what is due of `leases`, and gets an answer for each of `leases`. Then members are deleted that are
-- overdue by the margin and not in `leases`: P has forgotten them.
-- KEYS   1: the engine's set   2..: outcome key per lease, first those of `leases`, then those of `done`
-- ARGV   1: outcome_memory_ms   2: margin_ms   3: length of `leases`   4..: `leases`, then `done`
-- return {state, remaining_ms, state, remaining_ms, ...} in the order of `leases`

local now = now_ms()
local last = 3 + ARGV[3]

local function finish(member, outcome_key, outcome)
  redis.call('ZREM', KEYS[1], member)
  redis.call('SET', outcome_key, outcome, 'PX', ARGV[1], 'NX')
end

for i = last + 1, #ARGV do
  finish(ARGV[i], KEYS[i - 2], 'done')
end

local answers = {}
for i = 4, last do
  local state, remaining = 'held', 0
  local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]) or nil)
  if not score then
    state = outcome_of(KEYS[i - 2])
  elseif score > now then
    remaining = bounded(score, now) - now
  else
    state = score < 0 and 'released' or 'expired'
    finish(ARGV[i], KEYS[i - 2], state)
  end
  answers[#answers + 1] = state
  answers[#answers + 1] = remaining
end

local forgotten = string.format('%.0f', now - ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-' .. forgotten, forgotten)
set_expiry(KEYS[1], now, ARGV[2])
return answers
