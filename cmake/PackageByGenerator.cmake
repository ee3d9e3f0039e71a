# Read by cpack once for each generator.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_PRE_BUILD_SCRIPTS ${CPACK_LGPU_SOURCE}/cmake/PackageFiles.cmake)
  # The module uses the library's C++, which is the same in one version alone.
  set(version ${CPACK_PACKAGE_VERSION})
  if(CPACK_DEBIAN_PACKAGE_VERSION)
    set(version ${CPACK_DEBIAN_PACKAGE_VERSION})
  endif()
  set(CPACK_DEBIAN_PYTHON3-LGPU_PACKAGE_DEPENDS
    "python3 (>= 3.11~), python3 (<< 3.12), python3-numpy, liblgpu0 (= ${version})")
else()
  set(CPACK_PRE_BUILD_SCRIPTS ${CPACK_LGPU_SOURCE}/cmake/BundleLibraries.cmake)
  set(CPACK_COMPONENTS_ALL)
endif()
