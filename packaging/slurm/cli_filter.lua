-- Slurm's cli_filter/lua: --gpu-memory=8G, an option of spank_lgpu.c, becomes --gres=shard:8192. lgpu-prolog reads the
-- shards that Slurm allots, not this option.

function slurm_cli_setup_defaults(options, early_pass) return slurm.SUCCESS end

function slurm_cli_post_submit(offset, job_id, step_id) return slurm.SUCCESS end

function slurm_cli_pre_submit(options, offset)
  local size = options["spank"] and options["spank"]["lgpu"] and options["spank"]["lgpu"]["gpu-memory"]
  if size == nil then return slurm.SUCCESS end
  local number, unit = string.match(size, "^(%d+)([MG])i?B?$")
  if number == nil then
    slurm.log_error("lgpu: --gpu-memory=%s is not a size: write one such as 512MiB or 8G", size)
    return slurm.ERROR
  end
  local gres = options["gres"]
  if gres ~= nil and gres:find("shard") then
    slurm.log_error("lgpu: --gpu-memory and --gres=shard both ask for GPU memory: leave one of them out")
    return slurm.ERROR
  end
  local mib = tonumber(number)
  if unit == "G" then mib = mib * 1024 end
  local shards = string.format("shard:%d", mib)
  -- sbatch and salloc return the value of --gres as "gres:...", or none.
  options["gres"] = (gres ~= nil and gres ~= "" and gres ~= "none") and (gres .. "," .. shards) or shards
  return slurm.SUCCESS
end
