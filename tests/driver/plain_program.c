/* A program that has never heard of GPUs; it is linked in ways that leave no place for a shim. */
#include <stdio.h>

int main(void) {
  puts("it ran");
  return 3;
}
