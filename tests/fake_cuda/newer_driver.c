/* What a driver newer than lgpu has besides: later forms of calls that are known, and one never heard of. */
#include <string.h>

int cuMemAlloc_v3(unsigned long long* address, unsigned long long bytes, unsigned long long flags) {
  (void)address;
  return bytes == 0 && flags == 0 ? 1 : 801;
}
int cuMemFreeAsync_v2(unsigned long long address, void* stream) {
  return address == 0 && stream == NULL ? 1 : 802;
}
int cuMemFreeAsync_v2_ptsz(unsigned long long address, void* stream) {
  return address == 0 && stream == NULL ? 1 : 803;
}
int cuUnheardOf(void) { return 4711; }

/* The answer of a look-up that asks for more than the table of names has; null: the table's. */
void* LgpuFakeLaterCall(const char* name, int version, unsigned long long flags) {
  if (version < 14000) return NULL;
  if (strcmp(name, "cuMemAlloc") == 0) return (void*)&cuMemAlloc_v3;
  if (strcmp(name, "cuMemFreeAsync") == 0)
    return (flags & 2) != 0 ? (void*)&cuMemFreeAsync_v2_ptsz : (void*)&cuMemFreeAsync_v2;
  return NULL;
}
