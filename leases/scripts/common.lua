-- Put before each script of this folder by leases/redis_store.py.
--
-- The set of an engine: member = lease id, score = deadline in ms of this server's clock; a lease that was released
-- and not yet reaped has -(time of the release) instead, so it sorts first, is due, and cannot be renewed.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The set outlives its longest deadline by margin_ms, so that a dead engine leaves nothing.
local function live_on(set, now, margin_ms)
  local longest = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')[2]
  if longest then
    redis.call('PEXPIREAT', set, string.format('%.0f', math.max(tonumber(longest), now) + margin_ms))
  end
end

local function outcome_of(key)
  return redis.call('GET', key) or 'unknown'
end
