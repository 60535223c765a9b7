-- Makes a caller the owner of a token, unless there is one, and takes from a
-- limit for the owner alone: who holds a stolen token must not use up what the
-- pods need. take is the script of limits, with its keys and arguments.
--
-- KEYS[2]  whose the token is
-- ARGV[5]  who asks
-- ARGV[6]  milliseconds until the token is forgotten
-- Returns the owner and what take returned, which is missing when it was not
-- run, or failed.
local owner = redis.call('SET', KEYS[2], ARGV[5], 'NX', 'GET', 'PX', ARGV[6]) or ARGV[5]
if owner ~= ARGV[5] then
  return {owner}
end
local taken, wait = pcall(take)
if not taken then
  return {owner}
end
return {owner, wait}
