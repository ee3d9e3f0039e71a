/* Memory inside a limit from C: blocks, a refusal's fields, an owner that outlives the memory. */

#include <lgpu/c/memory.h>
#include <stdio.h>
#include <string.h>

static int Say(const char* what, const lgpu_status* status) {
  fprintf(stderr, "09_memory_in_c: %s: %s\n", what, lgpu_status_message(status));
  return 1;
}

static void PrintRefusal(const lgpu_refusal* refusal) {
  uint64_t asked = 0;
  uint64_t used = 0;
  uint64_t limit = 0;
  lgpu_refusal_owner owner;
  lgpu_refusal_number(refusal, "asked_bytes", &asked);
  lgpu_refusal_number(refusal, "used_bytes", &used);
  lgpu_refusal_number(refusal, "limit_bytes", &limit);
  printf("refused (%s): %llu asked, %llu used of %llu\n", lgpu_refusal_reason(refusal),
         (unsigned long long)asked, (unsigned long long)used, (unsigned long long)limit);
  for (size_t i = 0; lgpu_refusal_owner_at(refusal, i, &owner); ++i) {
    printf("  %s has %llu bytes in %llu block(s)\n", owner.op, (unsigned long long)owner.bytes,
           (unsigned long long)owner.blocks);
  }
}

static int Run(lgpu_status* status) {
  lgpu_options* const options = lgpu_options_new();
  lgpu_memory* memory = NULL;
  lgpu_export* owner = NULL;
  void* block = NULL;
  void* more = NULL;
  lgpu_options_add_device(options, (uint64_t)64 << 20, 0);
  lgpu_options_set_lease_name(options, "from-c");
  const lgpu_code opened = lgpu_memory_open(options, 0, &memory, status);
  lgpu_options_delete(options);
  if (opened != LGPU_OK) return Say("no memory", status);

  if (lgpu_memory_allocate(memory, (uint64_t)48 << 20, 0, NULL, "weights", LGPU_DEFAULT_TIMEOUT, &block,
                           status) != LGPU_OK) {
    return Say("no block", status);
  }
  /* On a real GPU the address is for CUDA's calls; a simulated one is memory of this machine. */
  if (lgpu_memory_cuda_device(memory) < 0) memset(block, 1, (size_t)48 << 20);
  if (lgpu_memory_allocate(memory, (uint64_t)32 << 20, 0, NULL, "activations", 0, &more, status) != LGPU_OK) {
    PrintRefusal(lgpu_status_refusal(status));
  }
  if (lgpu_memory_export(memory, block, NULL, &owner, status) != LGPU_OK) return Say("no owner", status);
  if (lgpu_memory_close(memory, status) == LGPU_FAILED_PRECONDITION) {
    printf("not closed: %s\n", lgpu_status_message(status));
  }
  lgpu_export_delete(owner);
  if (lgpu_memory_close(memory, status) != LGPU_OK) return Say("not closed", status);
  printf("closed, everything is back\n");
  lgpu_memory_delete(memory);
  return 0;
}

int main(void) {
  lgpu_status* const status = lgpu_status_new();
  const int result = Run(status);
  lgpu_status_delete(status);
  return result;
}
