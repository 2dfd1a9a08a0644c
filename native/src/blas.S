// The BLAS and LAPACK names that libmlx calls, each a jump to the same function of the OpenBLAS that the PyPI wheel
// scipy-openblas32 carries under the prefix `scipy_`.
//
// A jump leaves every argument where the caller put it, so one line serves each signature, Fortran's hidden string
// lengths included. tests/native/test_blas.py fails when libmlx asks for a name that is not here.

.text

.irp name, cblas_sgemm, cblas_dgemm, cblas_cgemm, sgetrf_, dgetrf_, sgetri_, dgetri_, strtri_, dtrtri_, spotrf_, dpotrf_, sgeqrf_, dgeqrf_, sorgqr_, dorgqr_, sgesdd_, dgesdd_, cgesdd_, ssyevd_, dsyevd_, cheevd_, sgeev_, dgeev_, cgeev_

.globl \name
.type \name, %function
.balign 16
\name:
#if defined(__x86_64__)
    endbr64
    jmp *scipy_\name@GOTPCREL(%rip)
#elif defined(__aarch64__)
    hint #34                            // bti c
    adrp x16, :got:scipy_\name
    ldr x16, [x16, #:got_lo12:scipy_\name]
    br x16
#else
#error "no jump written for this processor"
#endif
.size \name, . - \name

.endr

.section .note.GNU-stack, "", %progbits
