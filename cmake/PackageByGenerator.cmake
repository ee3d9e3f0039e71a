# Read by cpack once for each generator.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_PRE_BUILD_SCRIPTS ${CPACK_LGPU_SOURCE}/cmake/PackageFiles.cmake)
else()
  set(CPACK_PRE_BUILD_SCRIPTS ${CPACK_LGPU_SOURCE}/cmake/BundleLibraries.cmake)
  set(CPACK_COMPONENTS_ALL)
endif()
