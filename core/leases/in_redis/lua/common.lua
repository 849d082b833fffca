-- lua_script.py puts this before each script of this folder.
--
-- The sorted set of an engine: member = lease id, score = deadline in ms of this server's clock. A lease that was
-- released and not yet reaped has -(time of the release) instead: it sorts first, is due, and cannot be renewed.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- MAX_DURATION_MS of core/leases/ids.py. A score beyond it was written by another program, and may be infinite.
local longest_ms = 86400000

local function bounded(deadline, now)
  return math.min(deadline, now + longest_ms)
end

-- The set expires margin_ms after its longest deadline, so that a dead engine leaves nothing behind.
local function set_expiry(set, now, margin_ms)
  local longest = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')[2]
  if longest then
    redis.call('PEXPIREAT', set, string.format('%.0f', math.max(bounded(tonumber(longest), now), now) + margin_ms))
  end
end

-- A value of any type that another program wrote there is not an outcome.
local function outcome_of(key)
  local outcome = redis.pcall('GET', key)
  if outcome == 'done' or outcome == 'released' or outcome == 'expired' then
    return outcome
  end
  return 'unknown'
end
