/* A SPANK plugin of Slurm's: the option --gpu-memory=SIZE of sbatch, srun and salloc. The plugin only checks the size;
   cli_filter.lua beside it turns the option into shards. Without these two, users write --gres=shard:MIB.

     gcc -shared -fPIC -O2 -o /usr/lib/slurm/spank_lgpu.so spank_lgpu.c     (libslurm-dev)

   plugstack.conf.sample has the line that loads the plugin. */

#include <slurm/spank.h>
#include <stdlib.h>
#include <string.h>

SPANK_PLUGIN(lgpu, 1);

static int check_size(int value, const char *argument, int remote) {
  static const char *const units[] = {"M", "MiB", "G", "GiB"};
  char *end = NULL;
  size_t i;
  (void)value;
  (void)remote;
  if (argument != NULL && argument[0] >= '0' && argument[0] <= '9' && strtoull(argument, &end, 10) > 0) {
    for (i = 0; i < sizeof units / sizeof units[0]; ++i) {
      if (strcmp(end, units[i]) == 0) return ESPANK_SUCCESS;
    }
  }
  slurm_error("--gpu-memory=%s is not a size: write one such as 512MiB or 8G", argument == NULL ? "" : argument);
  return ESPANK_BAD_ARG;
}

static struct spank_option option = {"gpu-memory", "SIZE", "GPU memory of the job, on one GPU (lgpu)", 1, 0, check_size};

/* Registers the option in each context: sbatch does not find options in a table (spank_options). */
int slurm_spank_init(spank_t spank, int argc, char **argv) {
  const spank_context_t context = spank_context();
  (void)argc;
  (void)argv;
  if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR || context == S_CTX_REMOTE) {
    return spank_option_register(spank, &option);
  }
  return ESPANK_SUCCESS;
}
