/* Threads: futex waits, thread-local storage, vector registers, names, robust mutexes. */
#include "zoo.h"
#include <pthread.h>
#include <sys/prctl.h>
#include <immintrin.h>

#define THREADS 4
static pthread_t threads[THREADS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t go = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static int round_wanted, finished, waiting;
static __thread int local;
static volatile int spin_stop;
static pid_t ids[THREADS];
static unsigned long spun;

static void *work(void *argument) {
    int number = (int)(intptr_t)argument;
    char name[16];
    snprintf(name, sizeof name, "worker-%d", number);
    prctl(PR_SET_NAME, name);
    local = number * 1000;
    ids[number] = (pid_t)syscall(SYS_gettid);
    pthread_mutex_lock(&mutex);
    waiting++;
    pthread_cond_signal(&done);
    for (int seen = 0;;) {
        while (round_wanted == seen) pthread_cond_wait(&go, &mutex);
        seen = round_wanted;
        char now[16];
        prctl(PR_GET_NAME, now);
        if (local == number * 1000 && !strcmp(now, name) && syscall(SYS_gettid) == ids[number]) finished++;
        pthread_cond_signal(&done);
    }
    return NULL;
}
/* Keeps values in vector registers for as long as it runs. */
static void *spin(void *argument) {
    (void)argument;
    __m128d one = _mm_set1_pd(1.0), sum = _mm_setzero_pd();
    unsigned long count = 0;
    while (!spin_stop) {
        for (int i = 0; i < 1000; i++) sum = _mm_add_pd(sum, one);
        count += 1000;
        double low = _mm_cvtsd_f64(sum);
        if (low != (double)count) fail("vector registers: %f %lu", low, count);
        __sync_fetch_and_add(&spun, 1);
        if (count > 1000000) usleep(100);
    }
    return NULL;
}
static void *nothing_to_do(void *argument) { return argument; }
static pthread_t spinner;
static void setup(void) {
    for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    pthread_create(&spinner, NULL, spin, NULL);
    pthread_mutex_lock(&mutex);
    while (waiting < THREADS) pthread_cond_wait(&done, &mutex);
    pthread_mutex_unlock(&mutex);
    while (__sync_fetch_and_add(&spun, 0) < 10) usleep(100);
}
static void verify(void) {
    pthread_mutex_lock(&mutex);
    finished = 0;
    round_wanted++;
    pthread_cond_broadcast(&go);
    while (finished < THREADS) pthread_cond_wait(&done, &mutex);
    pthread_mutex_unlock(&mutex);
    unsigned long before = __sync_fetch_and_add(&spun, 0), now = before;
    for (int i = 0; i < 10000 && now == before; i++) { usleep(1000); now = __sync_fetch_and_add(&spun, 0); }
    CHECK(now > before);
    pthread_t extra;
    void *nothing;
    CHECK(pthread_create(&extra, NULL, nothing_to_do, NULL) == 0);
    CHECK(pthread_join(extra, &nothing) == 0);
}
static pthread_t grown;
static void mutate(void) {
    pthread_create(&grown, NULL, spin, NULL);
    verify();
}
