// A Vulkan layer that lists VK_KHR_shader_non_semantic_info on devices that do not.
//
// Drivers need do nothing for that extension, but some that are older than their loader do not list
// it, and some peers will not start without it. Nothing but the list changes, and no call of a
// device's goes through this layer, so it costs nothing that is measured.

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vulkan.cdef.h"

#define NAME "VK_KHR_shader_non_semantic_info"
#define EXPORTED __attribute__((visibility("default")))

// What the loader hands to layers: from vk_layer.h, which is no part of Vulkan's own headers.
enum { LOADER_INSTANCE = 47, LOADER_DEVICE = 48, LINK = 0 };

typedef struct Link {
    struct Link *next;
    PFN_vkGetInstanceProcAddr instance_function;
    PFN_vkVoidFunction device_function;  // or something else; only handed on, for devices
} Link;

typedef struct LoaderInfo {
    int32_t type;
    const struct LoaderInfo *next;
    int32_t function;
    Link *link;
} LoaderInfo;

typedef struct Negotiation {
    int32_t type;
    void *next;
    uint32_t version;
    PFN_vkGetInstanceProcAddr instance_function;
    PFN_vkGetDeviceProcAddr device_function;
    void *physical_device_function;
} Negotiation;

static VkInstance instance;
static PFN_vkGetInstanceProcAddr next_instance_function;
static PFN_vkGetDeviceProcAddr next_device_function;
static PFN_vkEnumerateDeviceExtensionProperties next_list_extensions;

static Link *take_link(const void *chain, int32_t type) {
    LoaderInfo *info = (LoaderInfo *)chain;
    while (info && !(info->type == type && info->function == LINK)) info = (LoaderInfo *)info->next;
    if (!info) return NULL;
    Link *link = info->link;
    info->link = link->next;  // for the layer below
    return link;
}

static VkResult create_instance(const VkInstanceCreateInfo *create, const VkAllocationCallbacks *a,
                                VkInstance *made) {
    Link *link = take_link(create->pNext, LOADER_INSTANCE);
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    next_instance_function = link->instance_function;
    PFN_vkCreateInstance call =
        (PFN_vkCreateInstance)next_instance_function(NULL, "vkCreateInstance");
    VkResult result = call(create, a, made);
    if (result != VK_SUCCESS) return result;
    instance = *made;
    // Now: once the instance is in use the loader answers with the top of the chain, which is us.
    next_list_extensions = (PFN_vkEnumerateDeviceExtensionProperties)next_instance_function(
        instance, "vkEnumerateDeviceExtensionProperties");
    return VK_SUCCESS;
}

static VkResult create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *create,
                              const VkAllocationCallbacks *a, VkDevice *made) {
    Link *link = take_link(create->pNext, LOADER_DEVICE);
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    next_device_function = (PFN_vkGetDeviceProcAddr)link->device_function;
    VkDeviceCreateInfo lesser = *create;
    const char *kept[256];
    lesser.enabledExtensionCount = 0;
    for (uint32_t i = 0; i < create->enabledExtensionCount; i++)
        if (strcmp(create->ppEnabledExtensionNames[i], NAME) && lesser.enabledExtensionCount < 256)
            kept[lesser.enabledExtensionCount++] = create->ppEnabledExtensionNames[i];
    lesser.ppEnabledExtensionNames = kept;
    PFN_vkCreateDevice call =
        (PFN_vkCreateDevice)link->instance_function(instance, "vkCreateDevice");
    return call(physical, &lesser, a, made);
}

static VkResult list_extensions(VkPhysicalDevice physical, const char *layer, uint32_t *count,
                                VkExtensionProperties *listed) {
    if (layer) return next_list_extensions(physical, layer, count, listed);
    uint32_t room = *count;
    if (!listed) {
        VkResult result = next_list_extensions(physical, layer, count, NULL);
        *count += 1;
        return result;
    }
    VkResult result = next_list_extensions(physical, layer, count, listed);
    if (result != VK_SUCCESS || *count >= room) return VK_INCOMPLETE;
    VkExtensionProperties own = {NAME, 1};
    listed[(*count)++] = own;
    return VK_SUCCESS;
}

static PFN_vkVoidFunction device_function(VkDevice device, const char *name) {
    return next_device_function(device, name);
}

static PFN_vkVoidFunction instance_function(VkInstance of, const char *name) {
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (PFN_vkVoidFunction)instance_function;
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)device_function;
    if (!strcmp(name, "vkCreateInstance")) return (PFN_vkVoidFunction)create_instance;
    if (!strcmp(name, "vkCreateDevice")) return (PFN_vkVoidFunction)create_device;
    if (!strcmp(name, "vkEnumerateDeviceExtensionProperties"))
        return (PFN_vkVoidFunction)list_extensions;
    return next_instance_function ? next_instance_function(of, name) : NULL;
}

EXPORTED VkResult vkNegotiateLoaderLayerInterfaceVersion(Negotiation *with) {
    if (with->version > 2) with->version = 2;
    with->instance_function = instance_function;
    with->device_function = device_function;
    with->physical_device_function = NULL;
    return VK_SUCCESS;
}
