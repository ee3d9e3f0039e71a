-- Slurm's job_submit/lua: a job that asks for more shards than every card has is refused at submission; without this
-- check such a job waits for ever. The size of the largest card is that of the largest `Name=shard Count=... File=...` in
-- gres.conf, which lies beside this file. Odd counts become even: lgpu gives memory in chunks of 2 MiB, and a shard is 1 MiB.

local folder = (os.getenv("SLURM_CONF") or "/etc/slurm/slurm.conf"):match("^(.*)/[^/]*$")

-- The size of the largest card in MiB. If gres.conf does not have it: nil and the reason.
local function largest_card()
  local path = folder .. "/gres.conf"
  local file, why = io.open(path)
  if file == nil then return nil, why end
  local largest = nil
  for line in file:lines() do
    local lower = line:lower():gsub("#.*", "")
    local count = lower:match("name=shard%s.*count=(%d+)") or lower:match("count=(%d+).*name=shard")
    if count ~= nil and lower:match("file=") then largest = math.max(largest or 0, tonumber(count)) end
  end
  file:close()
  if largest == nil then return nil, path .. " has no line Name=shard Count=... File=..." end
  return largest
end

-- Why the last job's size was not checked; nil: it was. slurmctld keeps this value between jobs, so its log has each reason
-- once.
local logged = nil

-- The request with even counts of shards; nil and the error if no card is large enough. Other resources are not changed.
local function checked(request, largest)
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

-- Whether any field of the job asks for shards.
local function has_shards(job)
  for _, field in ipairs(fields) do
    if job[field] ~= nil and job[field]:find("shard") then return true end
  end
  return false
end

local function check_job(job)
  if not has_shards(job) then return slurm.SUCCESS end
  local largest, why = largest_card()
  if largest == nil then
    if logged ~= why then
      slurm.log_error("lgpu: the GPU memory of jobs is not checked at submission: %s", why)
    end
    slurm.log_user("lgpu: the GPU memory of this job is not checked: slurmctld's gres.conf does not tell the size of the " ..
      "cards. If no card is large enough, the job waits for ever; ask your administrator")
  end
  logged = why
  for _, field in ipairs(fields) do
    local request = job[field]
    if request ~= nil and request:find("shard") then
      local even, wrong = checked(request, largest)
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
