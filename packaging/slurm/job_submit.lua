-- Slurm's job_submit/lua: what no card can hold is refused when the job is submitted; without it such a job waits for
-- ever. The size of the largest card is that of the largest `Name=shard Count=... File=...` in gres.conf, which lies
-- beside this file. Odd counts become even: lgpu gives memory in chunks of 2 MiB, and a shard is 1 MiB.

local folder = (os.getenv("SLURM_CONF") or "/etc/slurm/slurm.conf"):match("^(.*)/[^/]*$")

local function largest_card()
  local largest = nil
  local file = io.open(folder .. "/gres.conf")
  if file == nil then return nil end
  for line in file:lines() do
    local lower = line:lower()
    local count = lower:match("name=shard%s.*count=(%d+)") or lower:match("count=(%d+).*name=shard")
    if count ~= nil and lower:match("file=") then largest = math.max(largest or 0, tonumber(count)) end
  end
  file:close()
  return largest
end

-- The request with even counts of shards, or nil and why not. Other resources stay as they are.
local function checked(request)
  local largest = largest_card()
  local wrong = nil
  local result = request:gsub("([^,]*shard[^,]*)", function(part)
    if not part:match("^gres[:/]shard") and not part:match("^shard") then return part end
    local before, digits, unit = part:match("^(.*[:=])(%d+)([KkMmGg]?)$")
    local count = digits and tonumber(digits) or 1
    if unit == "K" or unit == "k" then count = count * 1024 end
    if unit == "M" or unit == "m" then count = count * 1048576 end
    if unit == "G" or unit == "g" then count = count * 1073741824 end
    count = count + count % 2
    if largest ~= nil and count > largest then
      wrong = string.format("lgpu: %d MiB of GPU memory fit on no card: the largest has %d MiB (shards of one job lie on " ..
        "one card); ask for less", count, largest)
    end
    return string.format("%s%d", before or (part .. ":"), count)
  end)
  if wrong ~= nil then return nil, wrong end
  return result
end

local fields = { "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }

local function check_job(job)
  for _, field in ipairs(fields) do
    local request = job[field]
    if request ~= nil and request:find("shard") then
      local even, wrong = checked(request)
      if even == nil then
        slurm.log_user("%s", wrong)
        return slurm.ERROR
      end
      if even ~= request then job[field] = even end
    end
  end
  return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid) return check_job(job_desc) end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return check_job(job_desc) end

slurm.log_info("lgpu: job_submit is loaded")
return slurm.SUCCESS
