-- What became of leases that are not in their engine's set.
-- KEYS   1..: outcome key per lease
-- return {state, state, ...} in the order of the keys

local answers = {}
for i = 1, #KEYS do
  answers[i] = outcome_of(KEYS[i])
end
return answers
