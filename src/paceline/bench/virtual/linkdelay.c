/* Holds packets for a while: one-way delay, jitter and loss for kernels without netem.
 *
 *   linkdelay NETNS_PATH QUEUE DELAY_NS JITTER_NS LOSS [NETNS_PATH QUEUE ...]
 *
 * An iptables rule sends arriving packets to QUEUE of the namespace; only their ids come here (the packets stay in the
 * kernel, unsegmented), and each is released DELAY_NS after the kernel received it. Being woken late is corrected by a
 * running estimate of the median lateness. Order is kept: jitter never lets a packet overtake an earlier one of its queue.
 * Prints "ready" and goes to the background; without it packets of its queues are dropped, so a run cannot go on
 * over links that lost their latency.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define HELD 65536u
#define FIELDS 5
#define OLDEST_STAMP_NS 100000000LL
#define MOST_EARLY_NS 100000LL
#define EARLY_STEP_NS 1000LL

struct packet { uint32_t id; int64_t due; };
struct queue {
    int fd, number;
    int64_t delay, jitter, last_due;
    double loss;
    uint32_t head, tail;
    struct packet held[HELD];
};

static int64_t early; /* how much before its time a packet is released, so that on average it leaves on time */

static int64_t nanoseconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "linkdelay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int attribute(char *message, int at, int type, const void *data, int size) {
    struct nlattr *a = (void *)(message + at);
    a->nla_type = type;
    a->nla_len = NLA_HDRLEN + size;
    memcpy(message + at + NLA_HDRLEN, data, size);
    return at + NLA_ALIGN(a->nla_len);
}

static int open_message(char *message, int type, int flags, int number) {
    struct nlmsghdr *header = (void *)message;
    struct nfgenmsg *general = NLMSG_DATA(header);
    header->nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | type;
    header->nlmsg_flags = NLM_F_REQUEST | flags;
    general->nfgen_family = AF_UNSPEC;
    general->res_id = htons(number);
    return NLMSG_LENGTH(sizeof *general);
}

static void deliver(int fd, char *message, int size) {
    ((struct nlmsghdr *)message)->nlmsg_len = size;
    if (send(fd, message, size, 0) < 0 && errno != EAGAIN && errno != ENOBUFS) fail("send");
}

static void configure(struct queue *q, int type, const void *data, int size, const uint32_t *mask) {
    char message[256] = {0}, answer[4096];
    int end = open_message(message, NFQNL_MSG_CONFIG, NLM_F_ACK, q->number);
    end = attribute(message, end, type, data, size);
    if (mask) end = attribute(message, end, NFQA_CFG_MASK, mask, sizeof *mask);
    deliver(q->fd, message, end);
    if (recv(q->fd, answer, sizeof answer, 0) < 0) fail("answer");
    struct nlmsgerr *error = NLMSG_DATA((struct nlmsghdr *)answer);
    if (error->error) { errno = -error->error; fail("configure queue"); }
}

static void verdict(struct queue *q, int type, uint32_t what, uint32_t id) {
    char message[64] = {0};
    struct nfqnl_msg_verdict_hdr header = {htonl(what), htonl(id)};
    int end = open_message(message, type, 0, q->number);
    deliver(q->fd, message, attribute(message, end, NFQA_VERDICT_HDR, &header, sizeof header));
}

static void enter(const char *namespace) {
    int fd = open(namespace, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) fail(namespace);
    close(fd);
}

static void open_queue(struct queue *q, char **argument) {
    int buffer = 64 << 20, on = 1;
    uint32_t length = htonl(HELD - 16), flags = htonl(NFQA_CFG_F_GSO);
    struct nfqnl_msg_config_cmd bind_queue = {NFQNL_CFG_CMD_BIND, 0, htons(AF_INET)};
    struct nfqnl_msg_config_params only_ids = {htonl(0), NFQNL_COPY_META};
    struct sockaddr_nl address = {.nl_family = AF_NETLINK};
    enter(argument[0]);
    q->number = atoi(argument[1]);
    q->delay = atoll(argument[2]);
    q->jitter = atoll(argument[3]);
    q->loss = atof(argument[4]);
    q->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    if (q->fd < 0 || bind(q->fd, (void *)&address, sizeof address)) fail("netlink");
    setsockopt(q->fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
    setsockopt(q->fd, SOL_NETLINK, NETLINK_NO_ENOBUFS, &on, sizeof on);
    configure(q, NFQA_CFG_CMD, &bind_queue, sizeof bind_queue, NULL);
    configure(q, NFQA_CFG_PARAMS, &only_ids, sizeof only_ids, NULL);
    configure(q, NFQA_CFG_QUEUE_MAXLEN, &length, sizeof length, NULL);
    configure(q, NFQA_CFG_FLAGS, &flags, sizeof flags, &flags);
    fcntl(q->fd, F_SETFL, O_NONBLOCK);
}

static double normal(void) { /* Box-Muller */
    return sqrt(-2 * log(1 - drand48())) * cos(2 * M_PI * drand48());
}

/* Time since the kernel received the packet; zero when the kernel did not say. */
static int64_t age_of(const struct nlattr *stamp) {
    if (!stamp) return 0;
    const struct nfqnl_msg_packet_timestamp *t = (const void *)((const char *)stamp + NLA_HDRLEN);
    int64_t received = (int64_t)be64toh(t->sec) * 1000000000LL + (int64_t)be64toh(t->usec) * 1000;
    int64_t age = nanoseconds(CLOCK_REALTIME) - received;
    return age > 0 && age < OLDEST_STAMP_NS ? age : 0;
}

static void hold(struct queue *q, uint32_t id, int64_t age) {
    if (q->loss > 0 && drand48() < q->loss) { verdict(q, NFQNL_MSG_VERDICT, NF_DROP, id); return; }
    int64_t due = nanoseconds(CLOCK_MONOTONIC) - age + q->delay;
    if (q->jitter) due += (int64_t)(q->jitter * normal());
    if (due < q->last_due) due = q->last_due;
    q->last_due = due;
    if (q->tail - q->head == HELD) q->head++;
    q->held[q->tail++ % HELD] = (struct packet){id, due};
}

static void take(struct queue *q, const struct nlmsghdr *header) {
    int left = header->nlmsg_len - NLMSG_LENGTH(sizeof(struct nfgenmsg));
    const struct nlattr *a = (const void *)((const char *)header + NLMSG_LENGTH(sizeof(struct nfgenmsg)));
    const struct nlattr *stamp = NULL, *packet = NULL;
    while (left >= NLA_HDRLEN && a->nla_len >= NLA_HDRLEN && a->nla_len <= left) {
        int type = a->nla_type & NLA_TYPE_MASK, size = NLA_ALIGN(a->nla_len);
        if (type == NFQA_PACKET_HDR) packet = a;
        if (type == NFQA_TIMESTAMP) stamp = a;
        a = (const void *)((const char *)a + size);
        left -= size;
    }
    if (!packet) return;
    const struct nfqnl_msg_packet_hdr *p = (const void *)((const char *)packet + NLA_HDRLEN);
    hold(q, ntohl(p->packet_id), age_of(stamp));
}

static void drain(struct queue *q) {
    static char buffer[1 << 16];
    for (int round = 0; round < 64; round++) {
        int size = recv(q->fd, buffer, sizeof buffer, 0);
        if (size <= 0) return;
        for (struct nlmsghdr *h = (void *)buffer; NLMSG_OK(h, size); h = NLMSG_NEXT(h, size))
            if (h->nlmsg_type == (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET)) take(q, h);
    }
}

/* Releases what is due and tells when the next packet will be. */
static int64_t release(struct queue *q) {
    int64_t now = nanoseconds(CLOCK_MONOTONIC);
    uint32_t from = q->head;
    int64_t oldest = q->held[from % HELD].due;
    while (q->head != q->tail && q->held[q->head % HELD].due - early <= now) q->head++;
    if (q->head != from) {
        verdict(q, NFQNL_MSG_VERDICT_BATCH, NF_ACCEPT, q->held[(q->head - 1) % HELD].id);
        early += nanoseconds(CLOCK_MONOTONIC) > oldest ? EARLY_STEP_NS : -EARLY_STEP_NS;
        if (early < 0) early = 0;
        if (early > MOST_EARLY_NS) early = MOST_EARLY_NS;
    }
    return q->head == q->tail ? INT64_MAX : q->held[q->head % HELD].due - early;
}

static void serve(struct queue *queues, int count) {
    int poll = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[64];
    epoll_ctl(poll, EPOLL_CTL_ADD, timer, &event);
    for (int i = 0; i < count; i++) {
        event.data.ptr = &queues[i];
        epoll_ctl(poll, EPOLL_CTL_ADD, queues[i].fd, &event);
    }
    for (;;) {
        int64_t next = INT64_MAX;
        for (int i = 0; i < count; i++) {
            int64_t due = release(&queues[i]);
            if (due < next) next = due;
        }
        struct itimerspec at = {0};
        if (next != INT64_MAX) {
            at.it_value.tv_sec = next / 1000000000LL;
            at.it_value.tv_nsec = next % 1000000000LL;
        }
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
        int ready = epoll_wait(poll, events, 64, -1);
        for (int i = 0; i < ready; i++) {
            uint64_t expirations;
            if (events[i].data.ptr) drain(events[i].data.ptr);
            else if (read(timer, &expirations, sizeof expirations) < 0 && errno != EAGAIN) fail("timer");
        }
    }
}

static void stamp_arrivals(void) { /* the kernel notes arrival times while any socket asks for them */
    int on = 1, fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on)) fail("timestamps");
}

static void go_to_background(void) {
    struct sched_param priority = {.sched_priority = 20};
    puts("ready");
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child) _exit(0);
    setsid();
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    sched_setscheduler(0, SCHED_FIFO, &priority);
}

int main(int count, char **argument) {
    int queues = (count - 1) / FIELDS;
    if (queues < 1 || (count - 1) % FIELDS) { fprintf(stderr, "usage: linkdelay NETNS QUEUE DELAY JITTER LOSS ...\n"); return 2; }
    struct queue *all = calloc(queues, sizeof *all);
    srand48(nanoseconds(CLOCK_REALTIME));
    stamp_arrivals();
    for (int i = 0; i < queues; i++) open_queue(&all[i], argument + 1 + FIELDS * i);
    go_to_background();
    serve(all, queues);
}
