-- sysbench's read-only OLTP at a rate that changes while it runs, as in the paper: the file --pace says how many transactions a second
-- are asked for. What was asked for and not begun in its time is not asked for again: those who asked went away.
require("oltp_common")

local ffi = require("ffi")
ffi.cdef [[
typedef struct { long s; long ns; } pace_time;
int clock_gettime(int clock, pace_time *now);
int usleep(unsigned us);
]]

sysbench.cmdline.options.pace = { "File with the transactions a second that are asked for", "" }
sysbench.cmdline.options.at_once = { "Ask for a transaction's rows by one statement", false }

local LOOK = 0.05 -- seconds until the file is looked at again
local clock, due, looked, gap = ffi.new("pace_time"), 0, 0, nil

local function now()
  ffi.C.clock_gettime(1, clock)
  return tonumber(clock.s) + tonumber(clock.ns) / 1e9
end

-- How long one thread waits between two transactions; nil where nothing is asked for.
local function look()
  local file = io.open(sysbench.opt.pace)
  local rate = file and tonumber(file:read("*a")) or 0
  if file then file:close() end
  local new = rate > 0 and sysbench.opt.threads / rate or nil
  if new ~= gap then due = now() + (new or 0) * math.random() end
  gap = new
end

local function wait()
  while true do
    local time = now()
    if time >= looked + LOOK then look(); looked = time end
    if gap and time >= due then break end
    ffi.C.usleep(1e6 * math.max(1e-4, math.min(LOOK, gap and due - time or LOOK)))
  end
  due = math.max(due + gap, now())
end

function prepare_statements()
  math.randomseed(sysbench.tid + 1)
  if sysbench.opt.at_once then return end
  prepare_begin()
  prepare_commit()
  prepare_point_selects()
  if sysbench.opt.range_selects then
    prepare_simple_ranges()
    prepare_sum_ranges()
    prepare_order_ranges()
    prepare_distinct_ranges()
  end
end

local function rows_at_once()
  local ids = {}
  for i = 1, sysbench.opt.point_selects do ids[i] = sysbench.rand.default(1, sysbench.opt.table_size) end
  con:query("SELECT c FROM sbtest1 WHERE id IN (" .. table.concat(ids, ",") .. ")")
end

function event()
  wait()
  if sysbench.opt.at_once then return rows_at_once() end
  begin()
  execute_point_selects()
  if sysbench.opt.range_selects then
    execute_simple_ranges()
    execute_sum_ranges()
    execute_order_ranges()
    execute_distinct_ranges()
  end
  commit()
end
