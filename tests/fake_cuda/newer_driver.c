/* What a driver newer than lgpu has besides: a later form of a call that is known, and one never heard of. */
int cuMemAlloc_v3(unsigned long long* address, unsigned long long bytes, unsigned long long flags) {
  (void)address;
  return bytes == 0 && flags == 0 ? 1 : 801;
}
int cuUnheardOf(void) { return 4711; }
