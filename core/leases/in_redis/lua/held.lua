-- Every lease of the engine that has not ended: released ones first, then the soonest deadline first.
-- KEYS   1: the engine's set
-- ARGV   1: how many leases to list at most
-- return {lease id, state, remaining_ms, lease id, state, remaining_ms, ...}

local now = now_ms()
local members = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
local answers = {}
for i = 1, #members, 2 do
  local score = tonumber(members[i + 1])
  answers[#answers + 1] = members[i]
  answers[#answers + 1] = score < 0 and 'released' or 'held'
  answers[#answers + 1] = math.max(0, bounded(score, now) - now)
end
return answers
