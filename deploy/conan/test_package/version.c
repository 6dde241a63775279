/* A program that is linked with the package and makes a world of one rank. */
#include <cohort/cohort.h>
#include <cohort/version.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  cohort_runtime runtime;
  cohort_comm world;
  if (cohort_init(NULL, &runtime) != COHORT_OK || cohort_world(runtime, NULL, &world) != COHORT_OK) return 1;
  printf("cohort %s\n", cohort_version());
  return strcmp(cohort_version(), COHORT_VERSION_STRING);
}
