/* A driver of long ago: it starts, and has none of the calls that came later. */
int cuInit(unsigned flags) { return (int)(flags & 0); }
int cuDriverGetVersion(int* version) {
  *version = 9020;
  return 0;
}
int cuGetErrorName(int error, const char** name) {
  *name = "CUDA_SUCCESS";
  return error & 0;
}
