// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The native half of the agent: elbowroom.agent.Native.
 *
 * It learns of collections from JVMTI. A function of the virtual machine is changed at once where that is one store over one
 * instruction. Others are changed in the first pause that is seen, and the heap's in the first pause under a bound. Flags are
 * written when Java says so. Nothing here allocates, prints or throws.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <jvmti.h>
#include <string.h>
#include <sys/prctl.h>
#include "symbols.h"
#include "gcthreads.h"
#include "machine.h"
#include "virtualmax.h"
#include "vmstructs.h"

static jvmtiEnv *jvmti;
static struct elf library;
static struct machine machine;
static int library_open;
static int threads_ready, heap_ready;
static int collected;	/* there has been a collection since the machine started */

static int on_vm_thread(void)
{
	char name[16] = "";

	return !prctl(PR_GET_NAME, name) && !strcmp(name, "VM Thread");
}

static void JNICALL collection_starts(jvmtiEnv *env)
{
	(void)env;
	/* Shenandoah and ZGC post some from threads that are not in a pause. */
	if (!on_vm_thread())
		return;
	if (__atomic_load_n(&threads_ready, __ATOMIC_ACQUIRE))
		gc_threads_place_in_pause(!__atomic_load_n(&collected, __ATOMIC_RELAXED));
	__atomic_store_n(&collected, 1, __ATOMIC_RELAXED);
	if (__atomic_load_n(&heap_ready, __ATOMIC_ACQUIRE))
		virtual_max_in_pause();
}

static void JNICALL collection_ends(jvmtiEnv *env)
{
	(void)env;
	if (__atomic_load_n(&heap_ready, __ATOMIC_ACQUIRE) && on_vm_thread())
		virtual_max_in_pause();
}

static int listen(struct text *why)
{
	jvmtiCapabilities wants = { .can_generate_garbage_collection_events = 1 };
	jvmtiEventCallbacks callbacks = {
		.GarbageCollectionStart = collection_starts,
		.GarbageCollectionFinish = collection_ends,
	};

	if ((*jvmti)->AddCapabilities(jvmti, &wants) ||
	    (*jvmti)->SetEventCallbacks(jvmti, &callbacks, sizeof(callbacks)) ||
	    (*jvmti)->SetEventNotificationMode(jvmti, JVMTI_ENABLE, JVMTI_EVENT_GARBAGE_COLLECTION_START, NULL) ||
	    (*jvmti)->SetEventNotificationMode(jvmti, JVMTI_ENABLE, JVMTI_EVENT_GARBAGE_COLLECTION_FINISH, NULL))
		return say(why, "JVMTI tells nothing of collections");
	return 0;
}

static int recognise(JavaVM *vm, struct text *why)
{
	Dl_info info;
	jint (*processors)(void);

	/* A function of the machine, to know which of the loaded libraries it is. */
	if (!dladdr((void *)(*vm)->GetEnv, &info) || !info.dli_fname)
		return say(why, "the library of the virtual machine is not known");
	vm_library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	if (!vm_library)
		return say(why, "the library of the virtual machine is not known");
	processors = (jint(*)(void))dlsym(vm_library, "JVM_ActiveProcessorCount");
	if (!processors || processors() < 1)
		return say(why, "JVM_ActiveProcessorCount is missing: this is no HotSpot");
	machine.processors = processors;
	return elf_open(&library, (void *)(*vm)->GetEnv, why);
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved)
{
	struct text why;

	(void)reserved;
	if ((*vm)->GetEnv(vm, (void **)&jvmti, JVMTI_VERSION_1_2))
		return JNI_ERR;
	library_open = !recognise(vm, &why);
	return JNI_VERSION_1_8;
}

static jstring sentence(JNIEnv *env, int failed, const struct text *why)
{
	return failed ? (*env)->NewStringUTF(env, why->words) : NULL;
}

JNIEXPORT jstring JNICALL Java_elbowroom_agent_Native_machine(JNIEnv *env, jclass class, jint version, jint collector,
							      jint floor)
{
	struct text why = { "the library of the virtual machine is not known" };
	int failed = !library_open;

	(void)class;
	machine.version = version;
	machine.collector = (enum collector)collector;
	machine.floor = floor;
	return sentence(env, failed || listen(&why), &why);
}

JNIEXPORT jstring JNICALL Java_elbowroom_agent_Native_threads(JNIEnv *env, jclass class, jboolean before)
{
	struct text why;
	int failed = gc_threads_prepare(&library, &machine, &why);

	(void)class;
	/* Collections from now on are seen here; `before` is counted after they began to be. */
	if (before)
		__atomic_store_n(&collected, 1, __ATOMIC_RELAXED);
	if (!failed) {
		gc_threads_place_atomic();
		__atomic_store_n(&threads_ready, 1, __ATOMIC_RELEASE);
	}
	return sentence(env, failed, &why);
}

JNIEXPORT jstring JNICALL Java_elbowroom_agent_Native_heap(JNIEnv *env, jclass class)
{
	struct text why;
	int failed = virtual_max_prepare(&library, &machine, &why);

	(void)class;
	if (!failed)
		__atomic_store_n(&heap_ready, 1, __ATOMIC_RELEASE);
	return sentence(env, failed, &why);
}

JNIEXPORT void JNICALL Java_elbowroom_agent_Native_setVirtualMax(JNIEnv *env, jclass class, jlong bytes, jlong lifted,
								       jlong lifts)
{
	(void)env;
	(void)class;
	virtual_max_set((uint64_t)bytes, (uint64_t)lifted, (uint64_t)lifts);
}

/* In the order of Native.State. */
JNIEXPORT void JNICALL Java_elbowroom_agent_Native_state(JNIEnv *env, jclass class, jlongArray into)
{
	uint32_t prepared, placed, forbidden;
	struct gc_counts threads;
	struct heap_counts heap;
	jlong words[12];

	(void)class;
	gc_threads_state(&prepared, &placed, &forbidden, &threads);
	virtual_max_state(&heap);
	words[0] = prepared;
	words[1] = placed;
	words[2] = threads.total;
	words[3] = threads.active;
	words[4] = threads.given;
	words[5] = threads.effective_cpu;
	words[6] = threads.decisions;
	words[7] = threads.capped;
	words[8] = heap.lifted_to;
	words[9] = heap.refused;
	words[10] = heap.lifted;
	words[11] = forbidden;
	(*env)->SetLongArrayRegion(env, into, 0, 12, words);
}

static void *flag_address(JNIEnv *env, jstring name, jint size)
{
	struct text why;
	char flag[64] = "";
	void *address;

	if (!library_open || (*env)->GetStringUTFLength(env, name) >= (jsize)sizeof(flag))
		return NULL;
	(*env)->GetStringUTFRegion(env, name, 0, (*env)->GetStringLength(env, name), flag);
	if (vm_flag(flag, &address, &why) || (uintptr_t)address % (uintptr_t)size)
		return NULL;
	return address;
}

/* The value of a flag of one byte or of four, or -1. */
JNIEXPORT jint JNICALL Java_elbowroom_agent_Native_flag(JNIEnv *env, jclass class, jstring name, jint size)
{
	void *address = flag_address(env, name, size);

	(void)class;
	return !address ? -1 : size == 1 ? *(uint8_t *)address : *(jint *)address;
}

/* Writes a flag that the machine reads anew at each collection. True when it was there. */
JNIEXPORT jboolean JNICALL Java_elbowroom_agent_Native_setFlag(JNIEnv *env, jclass class, jstring name, jint size, jint value)
{
	void *address = flag_address(env, name, size);

	(void)class;
	if (!address)
		return JNI_FALSE;
	if (size == 1)
		__atomic_store_n((uint8_t *)address, (uint8_t)value, __ATOMIC_RELAXED);
	else
		__atomic_store_n((jint *)address, value, __ATOMIC_RELAXED);
	return JNI_TRUE;
}
