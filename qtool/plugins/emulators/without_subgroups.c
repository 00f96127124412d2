// A Vulkan driver that is another one without operations on subgroups.
//
// The loader opens this library. It opens the driver in QTOOL_VULKAN_DRIVER, hands every function
// through, and states in the properties of a device that invocations of a subgroup cannot exchange
// values. Dawn then offers no WebGPU feature `subgroups`.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef Function (*Lookup)(void *instance, const char *name);
typedef void (*Properties2)(void *device, void *properties);

typedef struct Structure {
	uint32_t type; // VkStructureType
	struct Structure *next;
} Structure;

enum { SUBGROUP_PROPERTIES = 1000094000, VULKAN_1_1_PROPERTIES = 50 };
enum { SUPPORTED_OPERATIONS = 16 + 8, SUPPORTED_OPERATIONS_1_1 = 16 + 56 }; // byte offsets
enum { BASIC = 1 }; // VK_SUBGROUP_FEATURE_BASIC_BIT

static Properties2 driver_properties2;

static void *driver(const char *name)
{
	static void *library;
	if (library == NULL)
		library = dlopen(getenv("QTOOL_VULKAN_DRIVER"), RTLD_NOW | RTLD_LOCAL);
	return library == NULL ? NULL : dlsym(library, name);
}

static void properties2(void *device, void *properties)
{
	driver_properties2(device, properties);
	for (Structure *each = properties; each != NULL; each = each->next) {
		int at = each->type == SUBGROUP_PROPERTIES     ? SUPPORTED_OPERATIONS
			 : each->type == VULKAN_1_1_PROPERTIES ? SUPPORTED_OPERATIONS_1_1
							       : 0;
		if (at != 0)
			*(uint32_t *)((char *)each + at) = BASIC;
	}
}

static Function replaced(const char *name, Function function)
{
	if (function == NULL || (strcmp(name, "vkGetPhysicalDeviceProperties2") != 0 &&
				 strcmp(name, "vkGetPhysicalDeviceProperties2KHR") != 0))
		return function;
	driver_properties2 = (Properties2)function;
	return (Function)properties2;
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name)
{
	Lookup lookup = (Lookup)driver("vk_icdGetInstanceProcAddr");
	return lookup == NULL ? NULL : replaced(name, lookup(instance, name));
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name)
{
	Lookup lookup = (Lookup)driver("vk_icdGetPhysicalDeviceProcAddr");
	return lookup == NULL ? NULL : replaced(name, lookup(instance, name));
}

int vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version)
{
	int (*negotiate)(uint32_t *) =
		(int (*)(uint32_t *))driver("vk_icdNegotiateLoaderICDInterfaceVersion");
	return negotiate == NULL ? -9 : negotiate(version); // VK_ERROR_INCOMPATIBLE_DRIVER
}
