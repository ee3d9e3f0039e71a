__attribute__((visibility("default"))) int lgpu_test_runpath_target = 7;
